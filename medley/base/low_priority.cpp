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
  // Not SCHED_IDLE: a process that is killed is there, and so are its connections and locks, until
  // each of its threads has computed once more, and such a thread does that after seconds where
  // others compute (1.4 to 3.0 s beside three on two processors; with this 0.02 to 0.4 s).
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
