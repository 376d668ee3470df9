#include "medley/schedule/period.h"

#include <algorithm>

#include "medley/base/error.h"

namespace medley {
namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The longest times over all sizes of micro-batches.
struct Longest {
  std::vector<int64_t> stages, round_trips;
  int64_t least_period = 0;  // with unlimited memory

  explicit Longest(const PipelineTimes& times) {
    const MicrobatchTimes& first = times.sizes[0];
    stages.resize(first.stages.size());
    round_trips.resize(first.boundaries.size());
    for (const MicrobatchTimes& size : times.sizes) {
      for (size_t i = 0; i < stages.size(); ++i) {
        const StageTimes& s = size.stages[i];
        stages[i] = std::max(stages[i], (s.forward + s.backward).value);
        least_period = std::max(least_period, stages[i]);
      }
      for (size_t i = 0; i < round_trips.size(); ++i) {
        const BoundaryTimes& b = size.boundaries[i];
        round_trips[i] = std::max(round_trips[i], b.round_trip().value);
        least_period = std::max({least_period, b.forward.value, b.backward.value});
      }
    }
  }
};

}  // namespace

std::vector<int> counts_for_period(Nanoseconds period, const PipelineTimes& times) {
  const Longest longest(times);
  MEDLEY_CHECK(period.value > 0 && period.value >= longest.least_period);
  std::vector<int> counts(longest.stages.size(), 1);
  for (size_t i = counts.size() - 1; i-- > 0;) {
    int64_t loop = longest.stages[i], count = counts[i + 1];
    for (size_t k = i + 1; k < counts.size(); ++k) {
      loop += longest.round_trips[k - 1] + longest.stages[k];
      count = std::max(count, counts[k] - 1 + ceil_divide(loop, period.value));
    }
    counts[i] = static_cast<int>(std::min(count, int64_t{1} << 20));
  }
  return counts;
}

std::vector<int> counts_within(const std::vector<int>& limits, const PipelineTimes& times) {
  const Longest longest(times);
  MEDLEY_CHECK_EQ(limits.size(), longest.stages.size());
  // At `high` one micro-batch in flight suffices everywhere.
  int64_t low = std::max<int64_t>(1, longest.least_period), high = low;
  for (const int64_t time : longest.stages) high += time;
  for (const int64_t time : longest.round_trips) high += time;
  const auto fit = [&](int64_t period) {
    const std::vector<int> counts = counts_for_period({period}, times);
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > limits[i]) return false;
    return true;
  };
  MEDLEY_CHECK(fit(high));
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (fit(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return counts_for_period({low}, times);
}

}  // namespace medley
