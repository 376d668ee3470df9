#include "medley/schedule/deferred_weights.h"

#include <algorithm>
#include <numeric>

#include "medley/base/error.h"
#include "medley/schedule/best_counts.h"
#include "medley/schedule/stage_ends.h"

namespace medley {
namespace {

bool takes_time_for_weights(const PipelineTimes& times, size_t stage) {
  return std::ranges::any_of(times.sizes, [&](const MicrobatchTimes& size) {
    return size.stages[stage].weights > Nanoseconds{};
  });
}

}  // namespace

DeferredWeights deferred_weights(const PipelineTimes& times,
                                 const std::vector<int>& in_flight,
                                 std::vector<int> most,
                                 const std::vector<Nanoseconds>& after,
                                 const DeferredWeightsLimits& limits) {
  MEDLEY_CHECK_EQ(most.size(), in_flight.size());
  MEDLEY_CHECK_EQ(after.size(), in_flight.size());
  for (size_t s = 0; s < most.size(); ++s)
    if (!takes_time_for_weights(times, s)) most[s] = 0;
  Nanoseconds least;  // bound for any counts: a stage's busy time
  BestCounts best([&](const std::vector<int>& counts) {
    const StageEnds timing = time_ends(in_flight, times, counts);
    Nanoseconds finish;
    for (size_t s = 0; s < after.size(); ++s) {
      finish = std::max(finish, timing.last[s] + after[s]);
      least = std::max(least, timing.busy[s] + after[s]);
    }
    return finish;
  });
  const auto consider = [&](std::vector<int> counts) {
    for (size_t s = 0; s < counts.size(); ++s) counts[s] = std::clamp(counts[s], 0, most[s]);
    return best.consider(counts);
  };
  std::vector<int> counts(most.size());
  consider(counts);
  const Nanoseconds whole = best.finish();
  if ((whole - least) / whole < limits.worth || std::ranges::max(most) == 0)
    return {best.counts(), whole, whole};
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
      for (const int change : {-1, 1, -best.counts()[stage]}) {
        counts = best.counts();
        counts[stage] += change;
        if (timings++ < limits.timings) better |= consider(counts);
      }
  }
  return {best.counts(), best.finish(), whole};
}

}  // namespace medley
