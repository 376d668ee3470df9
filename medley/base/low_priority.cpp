#include "medley/base/low_priority.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace medley {

void run_behind_all_others() {
#if defined(__linux__)
  // Not SCHED_IDLE: a killed process, its connections and its locks exist until each of its threads
  // has run once more. An idle-priority thread runs only after seconds if others compute: 1.4 to
  // 3.0 s with three of them on two CPUs, against 0.02 to 0.4 s with SCHED_BATCH.
  const sched_param none{};
  constexpr int kNicest = 19;
  ::sched_setscheduler(0, SCHED_BATCH, &none);  // 0: this thread
  ::setpriority(PRIO_PROCESS, 0, kNicest);
  // glibc has no name for it (man 2 ioprio_set).
  constexpr int kThread = 1, kIdleClass = 3 << 13;
  ::syscall(SYS_ioprio_set, kThread, 0, kIdleClass);
#endif
}

}  // namespace medley
