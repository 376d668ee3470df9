#include "medley/schedule/deferred_weights.h"

#include <gmock/gmock.h>

#include <random>

#include "medley/base/at.h"

namespace medley {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

PipelineTimes equal_stages(int stages, int microbatches, int64_t weights) {
  return equal_microbatches({std::vector<StageTimes>(at(stages), {{1}, {2}, {weights}}),
                             std::vector<BoundaryTimes>(at(stages) - 1)},
                            microbatches);
}
std::vector<int> counts_of_1f1b(int stages) {
  std::vector<int> counts;
  for (int i = 0; i < stages; ++i) counts.push_back(stages - i);
  return counts;
}
std::vector<Nanoseconds> nothing(int stages) { return std::vector<Nanoseconds>(at(stages)); }
std::vector<int> limits(int stages, int most) {
  std::vector<int> all(at(stages), most);
  all[0] = 0;
  return all;
}

// The last stage waits for the first forward passes, others for no more: a third of 1F1B's bubble.
TEST(DeferredWeights, EqualStagesWaitForTheFirstMicroBatchOnly) {
  for (const int stages : {2, 4, 6}) {
    const PipelineTimes times = equal_stages(stages, 4 * stages, 1);
    const std::vector<int> counts = counts_of_1f1b(stages);
    const int64_t work = 3 * 4 * stages;
    const DeferredWeights none =
        deferred_weights(times, counts, limits(stages, 0), nothing(stages));
    EXPECT_EQ(none.finish.value, work + 3 * (stages - 1));
    EXPECT_THAT(none.counts, Each(0));
    const DeferredWeights found =
        deferred_weights(times, counts, limits(stages, 4 * stages), nothing(stages));
    EXPECT_EQ(found.whole, none.finish);
    EXPECT_EQ(found.finish.value, work + (stages - 1));
  }
}

TEST(DeferredWeights, StageWithFreeWeightGradientsStaysWhole) {
  EXPECT_THAT(deferred_weights(equal_stages(3, 8, 0), {3, 2, 1}, {0, 8, 8}, nothing(3)).counts,
              Each(0));
}

// Two stages end at one time; the second one then sums its gradients for longer.
TEST(DeferredWeights, UpdatesAreWaitedFor) {
  const PipelineTimes times = equal_stages(2, 8, 1);
  const DeferredWeights interleave = deferred_weights(times, {2, 1}, {0, 8}, nothing(2));
  EXPECT_THAT(interleave.counts, ElementsAre(0, 2));
  const DeferredWeights found = deferred_weights(times, {2, 1}, {0, 8}, {{0}, {3}});
  EXPECT_THAT(found.counts, ElementsAre(0, 0));
  EXPECT_EQ(found.finish, found.whole);
}

// The result is never slower than without deferral, within the limits, and executable.
TEST(DeferredWeights, RandomPipelinesAreNotSlower) {
  int faster = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    };
    const auto stages = static_cast<int>(2 + draw(4));
    const auto microbatches = static_cast<int>(1 + draw(12));
    MicrobatchTimes times;
    for (int s = 0; s < stages; ++s) {
      const int64_t backward = draw(20);
      times.stages.push_back({{draw(10)}, {backward}, {draw(backward + 1)}});
      if (s > 0) times.boundaries.push_back({{draw(4)}, {draw(4)}, {draw(3)}});
    }
    const PipelineTimes all = equal_microbatches(times, microbatches);
    const std::vector<int> in_flight = counts_of_1f1b(stages);
    std::vector<int> most = limits(stages, 0);
    for (int s = 1; s < stages; ++s) most[at(s)] = static_cast<int>(draw(5));
    const DeferredWeights found = deferred_weights(all, in_flight, most, nothing(stages));
    for (int s = 0; s < stages; ++s) EXPECT_LE(found.counts[at(s)], most[at(s)]);
    verify(with_deferred_weights(order_calls(in_flight, microbatches), found.counts), microbatches);
    const DeferredWeights none =
        deferred_weights(all, in_flight, limits(stages, 0), nothing(stages));
    EXPECT_LE(found.finish, none.finish) << seed;
    faster += found.finish < none.finish;
  }
  EXPECT_GT(faster, 150);
}

}  // namespace
}  // namespace medley
