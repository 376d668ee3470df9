#include "medley/base/clock.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "medley/base/error.h"

namespace medley {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

Nanoseconds SteadyClock::now() {
  return {std::chrono::duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count()};
}

void SteadyClock::sleep_until(Nanoseconds deadline) {
  std::this_thread::sleep_until(steady_clock::time_point(
      std::chrono::duration_cast<steady_clock::duration>(nanoseconds(deadline.value))));
}

void ManualClock::sleep_until(Nanoseconds deadline) { now_ = std::max(now_, deadline); }

void ManualClock::advance(Nanoseconds duration) {
  MEDLEY_CHECK(duration >= Nanoseconds{});
  now_ += duration;
}

}  // namespace medley
