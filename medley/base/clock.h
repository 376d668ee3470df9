#pragma once

#include "medley/base/units.h"

namespace medley {

// The interface for time. Times count from an unspecified origin and never decrease. The simulator
// computes simulated time without a clock.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() = 0;
  // Returns when now() >= deadline, immediately if the deadline has passed.
  virtual void sleep_until(Nanoseconds deadline) = 0;
};

// Reads the machine's steady clock.
class SteadyClock : public Clock {
 public:
  Nanoseconds now() override;
  void sleep_until(Nanoseconds deadline) override;
};

// A clock for tests, stepped by hand. Sleeping moves it instead of waiting. One thread only.
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
