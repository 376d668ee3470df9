#include "medley/schedule/stage_ends.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

// Returns one to three sizes of micro-batches in long runs, some with separate weights.
PipelineTimes draw_times(uint64_t seed, std::mt19937_64& random) {
  PipelineTimes times = random_request(seed, 7, 1).times;
  times.sizes.resize(1 + random() % 3, times.sizes[0]);
  for (MicrobatchTimes& size : times.sizes)
    for (StageTimes& stage : size.stages) {
      if (&size != &times.sizes[0]) stage.forward += {static_cast<int64_t>(random() % 5)};
      if (random() % 3 == 0) stage.weights = {stage.backward.value / 2};
    }
  const size_t microbatches = 1 + random() % (random() % 4 == 0 ? 400 : 40);
  times.size_of.clear();
  while (times.size_of.size() < microbatches)
    times.size_of.resize(std::min(microbatches, times.size_of.size() + 1 + random() % 200),
                         static_cast<int>(random() % times.sizes.size()));
  return times;
}

// In 10,000 random cases the ends equal exactly those of the timer of every call.
TEST(StageEnds, AreThoseOfTheTimer) {
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    std::mt19937_64 random(seed);
    const PipelineTimes times = draw_times(seed, random);
    std::vector<int> counts(times.num_stages()), late(times.num_stages());
    for (int& count : counts) count = static_cast<int>(1 + random() % 12);
    std::sort(counts.rbegin(), counts.rend());
    if (random() % 2 == 0)
      for (int& each : late) each = static_cast<int>(random() % 6);
    const PipelineOrder order =
        with_deferred_weights(order_calls(counts, times.num_microbatches()), late);
    const Timing whole = time_calls(order, times);
    const StageEnds found = time_ends(counts, times, late);
    ASSERT_EQ(found.finish, whole.finish) << seed;
    ASSERT_EQ(found.busy, whole.busy) << seed;
    for (size_t stage = 0; stage < counts.size(); ++stage)
      ASSERT_EQ(found.last[stage], whole.calls[stage].back().end) << seed << ", " << stage;
  }
}

}  // namespace
}  // namespace medley
