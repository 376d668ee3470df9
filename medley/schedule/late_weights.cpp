#include "medley/schedule/late_weights.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// No stage ends sooner.
Nanoseconds work_of_slowest(const PipelineTimes& times, const std::vector<Nanoseconds>& after) {
  Nanoseconds most;
  for (size_t s = 0; s < times.num_stages(); ++s) {
    Nanoseconds work = after[s];
    for (const int size : times.size_of) {
      const StageTimes& stage = times.sizes[at(size)].stages[s];
      work += stage.forward + stage.backward;
    }
    most = std::max(most, work);
  }
  return most;
}

bool has_weights(const PipelineTimes& times, size_t stage) {
  return std::ranges::any_of(times.sizes, [&](const MicrobatchTimes& size) {
    return size.stages[stage].weights > Nanoseconds{};
  });
}

}  // namespace

LateWeights late_weights(const PipelineTimes& times,
                         const std::vector<int>& in_flight,
                         std::vector<int> most,
                         const std::vector<Nanoseconds>& after,
                         const LateWeightsLimits& limits) {
  MEDLEY_CHECK_EQ(most.size(), in_flight.size());
  MEDLEY_CHECK_EQ(after.size(), in_flight.size());
  for (size_t s = 0; s < most.size(); ++s)
    if (!has_weights(times, s)) most[s] = 0;
  LateWeights best{{}, {INT64_MAX}, {}};
  int64_t fewest = 0;
  std::set<std::vector<int>> timed;
  const auto consider = [&](std::vector<int> counts) {
    for (size_t s = 0; s < counts.size(); ++s) counts[s] = std::clamp(counts[s], 0, most[s]);
    if (!timed.insert(counts).second) return false;
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const Timing timing =
        time_calls(order_calls(in_flight, times.num_microbatches(), counts), times);
    Nanoseconds finish;
    for (size_t s = 0; s < after.size(); ++s)
      finish = std::max(finish, timing.calls[s].back().end + after[s]);
    if (finish > best.finish || (finish == best.finish && sum >= fewest)) return false;
    best.counts = counts;
    best.finish = finish;
    fewest = sum;
    return true;
  };
  std::vector<int> counts(most.size());
  consider(counts);
  best.whole = best.finish;
  const Nanoseconds most_gain = best.whole - work_of_slowest(times, after);
  if (most_gain / best.whole < limits.worth || std::ranges::max(most) == 0) return best;
  for (const int last : {1, 0}) {
    std::iota(counts.begin(), counts.end(), last);
    counts[0] = 0;
    consider(counts);
    if (limits.timings == 0) break;
  }
  int timings = 0;
  for (bool better = limits.timings > 0; better;) {
    better = false;
    for (size_t stage = most.size(); stage-- > 1;)
      for (const int change : {-1, 1, -best.counts[stage]}) {
        counts = best.counts;
        counts[stage] += change;
        if (timings++ < limits.timings) better |= consider(counts);
      }
  }
  return best;
}

}  // namespace medley
