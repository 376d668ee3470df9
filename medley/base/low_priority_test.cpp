#include "medley/base/low_priority.h"

#include <gtest/gtest.h>

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>

#include <thread>

namespace medley {
namespace {

TEST(LowPriority, IsOfTheCallingThreadOnly) {
  int policy = -1, nice = -1;
  std::thread([&] {
    run_behind_all_others();
    policy = ::sched_getscheduler(0);
    nice = ::getpriority(PRIO_PROCESS, 0);
  }).join();
  EXPECT_EQ(policy, SCHED_BATCH);
  EXPECT_EQ(nice, 19);
  EXPECT_NE(::sched_getscheduler(0), SCHED_BATCH);
  EXPECT_LT(::getpriority(PRIO_PROCESS, 0), 19);
}

}  // namespace
}  // namespace medley
#endif
