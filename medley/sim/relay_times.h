#pragma once

// When stages sum what several of them hold, and what of that is hidden. A relay begins when the
// last of its members has come to it, and is hidden while anybody still goes backward: until then
// nobody could update.
//
//   pipeline 0, stage 0    B.......B.......B.......|
//   pipeline 0, stage 1    ...B.......B....|  ====relay====          of layers 6-11
//   pipeline 1, stage 0    ..B......B......|  ====relay====
//                                             hidden.|exposed
//
// Knows nothing of plans, nor of why a stage holds what.

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
  std::vector<int> stages;  // of the program, that have part in it; ascending
  int64_t tensors = 0;
  int64_t bytes = 0;         // of the sums
  int64_t traffic = 0;       // bytes that devices send
  int link = -1;             // that is occupied longest: of the topology; -1: none
  Nanoseconds alone;         // what it takes if nothing else is under way
  Nanoseconds begins, ends;  // in the step
  Nanoseconds hidden;        // of the time between
  Nanoseconds cool_down;     // from `begins` until nobody goes backward any more
  std::vector<int> behind;   // stages that go backward meanwhile; ascending
  bool operator==(const RelayTimes&) const = default;
};

// In the order in which they are posted. Requires: `simulation` is of this program, with relays.
std::vector<RelayTimes> relay_times(const Program& program,
                                    const CostModel& costs,
                                    const Simulation& simulation);

}  // namespace medley
