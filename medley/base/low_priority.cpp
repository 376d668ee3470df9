#include "medley/base/low_priority.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace medley {

void run_behind_all_others() {
#if defined(__linux__)
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);  // 0: this thread
  // glibc has no name for it (man 2 ioprio_set).
  constexpr int kThread = 1, kIdleClass = 3 << 13;
  ::syscall(SYS_ioprio_set, kThread, 0, kIdleClass);
#endif
}

}  // namespace medley
