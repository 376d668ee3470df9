#pragma once

// Times at which stages sum shared gradients or state, and their overlap. A gradient sync (gradient
// sync between pipelines) begins when its last member has reached it. It is overlapped while any
// stage still runs backward: updates cannot start before.
//
//   pipeline 0, stage 0    B.......B.......B.......|
//   pipeline 0, stage 1    ...B.......B....|  ====gradient sync====          of layers 6-11
//   pipeline 1, stage 0    ..B......B......|  ====gradient sync====
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

struct GradientSyncTimes {
  std::string name;  // as of the communication
  GradientSync::Of of = GradientSync::Of::kGradients;
  std::vector<int> stages;  // members, stages of the program, ascending
  int64_t tensors = 0;
  int64_t bytes = 0;          // summed bytes
  int64_t traffic = 0;        // bytes that devices send
  int link = -1;              // occupied longest, in the topology; -1: none
  Nanoseconds alone;          // on an idle network
  Nanoseconds begins, ends;   // in the step
  Nanoseconds overlapped;     // overlapped part
  Nanoseconds cool_down;      // from `begins` until the last backward ends
  std::vector<int> overlaps;  // stages in backward meanwhile, ascending
  bool operator==(const GradientSyncTimes&) const = default;
};

// Returns gradient syncs in post order. Requires: `simulation` is of this program, with gradient
// syncs.
std::vector<GradientSyncTimes> gradient_sync_times(const Program& program,
                                                   const CostModel& costs,
                                                   const Simulation& simulation);

}  // namespace medley
