#pragma once

#include "medley/base/clock.h"
#include "medley/emulation/ledger.h"

namespace medley {

// The compute clock of one emulated device. Sleeping moves it.
class EmulatedClock : public Clock {
 public:
  EmulatedClock(Ledger& ledger, int device) : ledger_(ledger), device_(device) {}
  Nanoseconds now() override { return ledger_.now(device_); }
  void sleep_until(Nanoseconds deadline) override {
    if (const Nanoseconds left = deadline - now(); left > Nanoseconds{})
      ledger_.compute(device_, left);
  }

 private:
  Ledger& ledger_;
  int device_;
};

}  // namespace medley
