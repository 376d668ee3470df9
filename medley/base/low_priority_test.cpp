#include "medley/base/low_priority.h"

#include <gtest/gtest.h>

#if defined(__linux__)
#include <sched.h>

#include <thread>

namespace medley {
namespace {

TEST(LowPriority, IsOfTheCallingThreadOnly) {
  int inside = -1;
  std::thread([&] {
    run_behind_all_others();
    inside = ::sched_getscheduler(0);
  }).join();
  EXPECT_EQ(inside, SCHED_IDLE);
  EXPECT_NE(::sched_getscheduler(0), SCHED_IDLE);
}

}  // namespace
}  // namespace medley
#endif
