#pragma once

// Times at which stages sum shared gradients or state, and their overlap. A relay (gradient sync
// between pipelines) begins when its last member has reached it. It is overlapped while any stage
// still runs backward: updates cannot start before.
//
//   pipeline 0, stage 0    B.......B.......B.......|
//   pipeline 0, stage 1    ...B.......B....|  ====relay====          of layers 6-11
//   pipeline 1, stage 0    ..B......B......|  ====relay====
//                                             hidden.|exposed
//
// Knows nothing of plans, nor of why a stage stores a value.

#include <string>
#include <vector>

#include "medley/base/units.h"
#include "medley/cost/cost_model.h"
#include "medley/program/program.h"
#include "medley/sim/simulate.h"

namespace medley {

struct RelayTimes {
  std::string name;  // as of the communication
  Relay::Of of = Relay::Of::kGradients;
  std::vector<int> stages;  // members, stages of the program, ascending
  int64_t tensors = 0;
  int64_t bytes = 0;         // summed bytes
  int64_t traffic = 0;       // bytes that devices send
  int link = -1;             // occupied longest, in the topology; -1: none
  Nanoseconds alone;         // on an idle network
  Nanoseconds begins, ends;  // in the step
  Nanoseconds hidden;        // overlapped part
  Nanoseconds cool_down;     // from `begins` until the last backward ends
  std::vector<int> behind;   // stages in backward meanwhile, ascending
  bool operator==(const RelayTimes&) const = default;
};

// Returns relays in post order. Requires: `simulation` is of this program, with relays.
std::vector<RelayTimes> relay_times(const Program& program,
                                    const CostModel& costs,
                                    const Simulation& simulation);

}  // namespace medley
