#pragma once

#include "medley/base/units.h"

namespace medley {

// The seam for time that passes. Times count from an unspecified origin and never go back.
// Simulated time is not read from a clock: the simulator computes it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() = 0;
  // Returns once now() >= deadline; at once when that is past.
  virtual void sleep_until(Nanoseconds deadline) = 0;
};

// The steady clock of the machine.
class SteadyClock : public Clock {
 public:
  Nanoseconds now() override;
  void sleep_until(Nanoseconds deadline) override;
};

// Stepped by hand, for tests. A sleeper moves the clock itself instead of waiting. One thread only.
class ManualClock : public Clock {
 public:
  Nanoseconds now() override { return now_; }
  void sleep_until(Nanoseconds deadline) override;
  // Requires: duration >= 0.
  void advance(Nanoseconds duration);

 private:
  Nanoseconds now_;
};

}  // namespace medley
