#pragma once

// Times of the functions of one stage by themselves, without neighbours. Ops run in sequence;
// communications among its devices overlap them from their posts on, also in sequence. Messages
// from other stages arrive immediately.

#include "medley/cost/cost_model.h"
#include "medley/program/program.h"

namespace medley {

struct FunctionTimes {
  Nanoseconds prologue, forward, backward;  // first micro-batch
  // Part of `backward` in ops that no other stage waits for (program/call_parts.h); 0 if the
  // stage's devices exchange results for other stages meanwhile.
  Nanoseconds weights;
  Nanoseconds update;  // once per step, with the exposed gradient exchange
  bool operator==(const FunctionTimes&) const = default;
};

// Returns the times on `device`, of the mesh; all others are assumed in lockstep. Groups of an axis
// that do the same share their common links.
FunctionTimes time_functions(const LoweredStage& stage, const CostModel& costs, int device);

}  // namespace medley
