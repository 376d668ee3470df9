#include "medley/sharding/conversion.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

AxisState cut(int position) { return sharded(position, 0); }

TEST(ConversionSteps, OneAxisTakesOne) {
  EXPECT_THAT(conversion_steps({replicated()}, {replicated()}), IsEmpty());
  EXPECT_THAT(conversion_steps({cut(0)}, {replicated()}),
              ElementsAre(ConversionStep{0, replicated()}));
}

TEST(ConversionSteps, WhatShrinksComesFirst) {
  EXPECT_THAT(conversion_steps({partial_sum(), partial_sum()}, {replicated(), cut(0)}),
              ElementsAre(ConversionStep{1, cut(0)}, ConversionStep{0, replicated()}));
  EXPECT_THAT(conversion_steps({replicated(), cut(1)}, {cut(0), replicated()}),
              ElementsAre(ConversionStep{0, cut(0)}, ConversionStep{1, replicated()}));
  EXPECT_THAT(conversion_steps({cut(0), cut(1)}, {replicated(), replicated()}),
              ElementsAre(ConversionStep{0, replicated()}, ConversionStep{1, replicated()}));
}

TEST(ConversionSteps, WhatLiesWithinMovesOutOfTheWay) {
  EXPECT_THAT(conversion_steps({cut(0), cut(0)}, {replicated(), cut(0)}),
              ElementsAre(ConversionStep{1, replicated()},
                          ConversionStep{0, replicated()},
                          ConversionStep{1, cut(0)}));
  EXPECT_THAT(conversion_steps({partial_sum(), partial_sum()}, {cut(0), cut(0)}),
              ElementsAre(ConversionStep{0, cut(0)}, ConversionStep{1, cut(0)}));
}

// For all pairs the steps reach the end, each changes something, and axis 0 never moves pieces of a
// factor that axis 1 cuts.
TEST(ConversionSteps, AxisZeroNeverMovesAroundAPieceOfAPiece) {
  const std::vector<AxisState> all{
      replicated(), partial_sum(), {Holding::kPartialMax, -1, -1}, cut(0), cut(1), sharded(0, 1)};
  for (const AxisState& a : all)
    for (const AxisState& b : all)
      for (const AxisState& c : all)
        for (const AxisState& d : all) {
          State state{a, b};
          const std::vector<ConversionStep> steps = conversion_steps(state, {c, d});
          EXPECT_LE(steps.size(), 3);
          for (const ConversionStep& step : steps) {
            AxisState& now = state[at(step.axis)];
            EXPECT_NE(now, step.to);
            if (step.axis == 0) {
              EXPECT_FALSE(are_nested(now, state[1]));
              EXPECT_FALSE(are_nested(step.to, state[1]));
            }
            now = step.to;
          }
          EXPECT_EQ(state, (State{c, d}));
        }
}

}  // namespace
}  // namespace medley
