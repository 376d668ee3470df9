#include "medley/sharding/redistribution.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

AxisPlacement cut(int position) { return sharded(position, 0); }

TEST(RedistributionSteps, OneAxisTakesOne) {
  EXPECT_THAT(redistribution_steps({replicated()}, {replicated()}), IsEmpty());
  EXPECT_THAT(redistribution_steps({cut(0)}, {replicated()}),
              ElementsAre(RedistributionStep{0, replicated()}));
}

TEST(RedistributionSteps, ShrinkingStepsComeFirst) {
  EXPECT_THAT(redistribution_steps({partial_sum(), partial_sum()}, {replicated(), cut(0)}),
              ElementsAre(RedistributionStep{1, cut(0)}, RedistributionStep{0, replicated()}));
  EXPECT_THAT(redistribution_steps({replicated(), cut(1)}, {cut(0), replicated()}),
              ElementsAre(RedistributionStep{0, cut(0)}, RedistributionStep{1, replicated()}));
  EXPECT_THAT(
      redistribution_steps({cut(0), cut(1)}, {replicated(), replicated()}),
      ElementsAre(RedistributionStep{0, replicated()}, RedistributionStep{1, replicated()}));
}

TEST(RedistributionSteps, InnerCutMovesOutOfTheWay) {
  EXPECT_THAT(redistribution_steps({cut(0), cut(0)}, {replicated(), cut(0)}),
              ElementsAre(RedistributionStep{1, replicated()},
                          RedistributionStep{0, replicated()},
                          RedistributionStep{1, cut(0)}));
  EXPECT_THAT(redistribution_steps({partial_sum(), partial_sum()}, {cut(0), cut(0)}),
              ElementsAre(RedistributionStep{0, cut(0)}, RedistributionStep{1, cut(0)}));
}

// For all pairs the steps reach the end, each changes something, and axis 0 never moves pieces of a
// factor that axis 1 cuts.
TEST(RedistributionSteps, AxisZeroNeverMovesAroundAPieceOfAPiece) {
  const std::vector<AxisPlacement> all{
      replicated(), partial_sum(), {Holding::kPartialMax, -1, -1}, cut(0), cut(1), sharded(0, 1)};
  for (const AxisPlacement& a : all)
    for (const AxisPlacement& b : all)
      for (const AxisPlacement& c : all)
        for (const AxisPlacement& d : all) {
          Placement placement{a, b};
          const std::vector<RedistributionStep> steps = redistribution_steps(placement, {c, d});
          EXPECT_LE(steps.size(), 3);
          for (const RedistributionStep& step : steps) {
            AxisPlacement& now = placement[at(step.axis)];
            EXPECT_NE(now, step.to);
            if (step.axis == 0) {
              EXPECT_FALSE(are_nested(now, placement[1]));
              EXPECT_FALSE(are_nested(step.to, placement[1]));
            }
            now = step.to;
          }
          EXPECT_EQ(placement, (Placement{c, d}));
        }
}

}  // namespace
}  // namespace medley
