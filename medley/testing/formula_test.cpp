#include "medley/testing/formula.h"

#include <gtest/gtest.h>

#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

Nanoseconds ms(double value) { return {static_cast<int64_t>(value * 1e6 + 0.5)}; }

// The sample in HARP's README: two stages of 214.3 and 220.2 ms, a transfer of 76 ms, 64
// micro-batches. It prints 14.38 s.
TEST(Formula, ReleasedAndPaperOnHarpsSample) {
  const MicrobatchTimes times = {{{ms(70), ms(144.3)}, {ms(70), ms(150.2)}},
                                 {{ms(76), ms(76), {}}}};
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kReleased, times, 64), ms(14383.1));
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kPaper, times, 64), ms(14459.1));
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kOverlapped, times, 64), ms(14459.1));
}

// A link of 300 ms paces the pipeline, which the paper's formula ignores.
TEST(Formula, ALinkMayBeTheBottleneck) {
  const MicrobatchTimes times = {{{ms(70), ms(140)}, {ms(70), ms(140)}}, {{ms(300), ms(300), {}}}};
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kReleased, times, 11), ms(420 + 300 + 3000));
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kPaper, times, 11), ms(420 + 600 + 2100));
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kOverlapped, times, 11), ms(420 + 600 + 3000));
}

// Latency counts twice per round trip, and paces only the released formula.
TEST(Formula, LatencyDoesNotPace) {
  const MicrobatchTimes times = {{{ms(10), ms(20)}, {ms(10), ms(20)}}, {{ms(5), ms(5), ms(40)}}};
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kReleased, times, 3), ms(60 + 45 + 2 * 45));
  EXPECT_EQ(estimate_pipeline(PipelineFormula::kOverlapped, times, 3), ms(60 + 90 + 2 * 30));
}

TEST(LowerBound, IsReachedByEqualStages) {
  const PipelineTimes times = equal_microbatches(
      {{{ms(1), ms(2)}, {ms(1), ms(2)}, {ms(1), ms(2)}}, {{ms(1), ms(1), {}}, {ms(1), ms(1), {}}}},
      20);
  EXPECT_EQ(lower_bound(times), ms(3 * 3 + 4 * 1 + 19 * 3));
  EXPECT_EQ(time_calls(order_calls({5, 3, 1}, 20), times).finish, lower_bound(times));
}

TEST(LowerBound, HoldsForAnyOrder) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const PipelineTimes times = random_request(seed, 5, 8).times;
    const int stages = static_cast<int>(times.num_stages());
    const Nanoseconds bound = lower_bound(times);
    for (uint64_t draw = 0; draw < 3; ++draw) {
      const PipelineOrder order = random_order(3 * seed + draw, stages, times.num_microbatches());
      EXPECT_LE(bound, time_calls(order, times).finish) << seed;
    }
    const std::vector<int> all(times.num_stages(), times.num_microbatches());
    EXPECT_LE(bound, time_calls(order_calls(all, times.num_microbatches()), times).finish) << seed;
  }
}

}  // namespace
}  // namespace medley
