#pragma once

// What the functions of one stage take by themselves, without its neighbours: ops one after the
// other, communications among its own devices beside them, from their posts on and one after the
// other. What other stages send is there at once.

#include "medley/cost/cost_model.h"
#include "medley/program/program.h"

namespace medley {

struct FunctionTimes {
  Nanoseconds prologue, forward, backward;  // of the first micro-batch
  // Of `backward`, ops that no other stage waits for (program/call_parts.h); none where devices
  // of the stage exchange meanwhile what others wait for.
  Nanoseconds weights;
  Nanoseconds update;  // what is done once a step, and the rest of the exchange of gradients
  bool operator==(const FunctionTimes&) const = default;
};

// As `device`, of the mesh, sees it: all others are taken to be as far. Groups of an axis that do
// the same share the links that they have in common.
FunctionTimes time_functions(const LoweredStage& stage, const CostModel& costs, int device);

}  // namespace medley
