#pragma once

// How long a lowered stage takes for a step: the same calls, segments and communications that will
// run, with times from the cost model. Every device has one stream for ops and one for
// communications:
//
//   device 0   segment | post a | segment ........... | wait a | segment
//   device 1   segment .......... | post a | segment  | wait a | segment
//   network                                 a ========
//
// A communication starts when its last member has posted it and the one before is through. Knows
// nothing of strategies.

#include <vector>

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/program/program.h"

namespace medley {

struct Prediction {
  Nanoseconds step;                   // until the last device is done
  std::vector<Nanoseconds> computes;  // [device of the mesh] the rest of the step it waits
  Nanoseconds communicates;           // of all communications, overlapped or not
  bool operator==(const Prediction&) const = default;
};

Prediction predict(const LoweredStage& stage, const Cluster& cluster);

}  // namespace medley
