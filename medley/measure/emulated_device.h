#pragma once

// One emulated device alone, to measure its op times: it computes no values and moves the virtual
// clock as in a run. The planner must not know the hidden truth. It sees these measurements.

#include <memory>

#include "medley/cluster/cluster.h"
#include "medley/emulation/hidden_truth.h"
#include "medley/emulation/ledger.h"
#include "medley/measure/op_timer.h"

namespace medley {

class EmulatedDevice {
 public:
  EmulatedDevice(const DeviceKind& kind, const HiddenTruth& truth);
  // A device of a cluster. Requires: it has joined the ledger, which outlives this.
  EmulatedDevice(Ledger& ledger, int device, const HiddenTruth& truth);
  ~EmulatedDevice();

  OpTimer timer();

 private:
  struct Alone;
  struct State;
  int device_ = 0;
  std::unique_ptr<Alone> alone_;  // null: a device of a cluster
  std::unique_ptr<State> state_;
};

}  // namespace medley
