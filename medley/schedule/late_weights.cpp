#include "medley/schedule/late_weights.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

bool has_weights(const PipelineTimes& times, size_t stage) {
  return std::ranges::any_of(times.sizes, [&](const MicrobatchTimes& size) {
    return size.stages[stage].weights > Nanoseconds{};
  });
}

}  // namespace

LateWeights late_weights(const PipelineTimes& times,
                         const std::vector<int>& in_flight,
                         std::vector<int> most,
                         int max_timings) {
  MEDLEY_CHECK_EQ(most.size(), in_flight.size());
  for (size_t s = 0; s < most.size(); ++s)
    if (!has_weights(times, s)) most[s] = 0;
  LateWeights best{{}, {INT64_MAX}};
  int64_t fewest = 0;
  std::set<std::vector<int>> timed;
  const auto consider = [&](std::vector<int> counts) {
    for (size_t s = 0; s < counts.size(); ++s) counts[s] = std::clamp(counts[s], 0, most[s]);
    if (!timed.insert(counts).second) return false;
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const PipelineOrder order = order_calls(in_flight, times.num_microbatches(), counts);
    const Nanoseconds finish = time_calls(order, times).finish;
    if (finish > best.finish || (finish == best.finish && sum >= fewest)) return false;
    best = {counts, finish};
    fewest = sum;
    return true;
  };
  std::vector<int> counts(most.size());
  consider(counts);
  for (const int last : {0, 1}) {
    std::iota(counts.begin(), counts.end(), last);
    counts[0] = 0;
    consider(counts);
  }
  int timings = 0;
  for (bool better = true; better;) {
    better = false;
    for (size_t stage = most.size(); stage-- > 1;)
      for (const int change : {-1, 1, -best.counts[stage]}) {
        counts = best.counts;
        counts[stage] += change;
        if (timings++ < max_timings) better |= consider(counts);
      }
  }
  return best;
}

}  // namespace medley
