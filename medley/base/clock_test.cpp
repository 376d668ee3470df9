#include "medley/base/clock.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"

namespace medley {
namespace {

TEST(SteadyClock, SleepsToTheDeadline) {
  SteadyClock clock;
  Nanoseconds deadline = clock.now() + Nanoseconds{2'000'000};
  clock.sleep_until(deadline);
  EXPECT_GE(clock.now(), deadline);
}

TEST(ManualClock, MovesOnlyWhenTold) {
  ManualClock clock;
  EXPECT_EQ(clock.now(), Nanoseconds{0});
  clock.advance(Nanoseconds{5});
  EXPECT_EQ(clock.now(), Nanoseconds{5});
  EXPECT_THROW(clock.advance(Nanoseconds{-1}), Error);
}

TEST(ManualClock, SleepingMovesItForwardButNeverBack) {
  ManualClock clock;
  clock.sleep_until(Nanoseconds{7});
  EXPECT_EQ(clock.now(), Nanoseconds{7});
  clock.sleep_until(Nanoseconds{3});
  EXPECT_EQ(clock.now(), Nanoseconds{7});
}

}  // namespace
}  // namespace medley
