#pragma once

// What the schedules of a lowered pipeline, one of its program's, are chosen from: what its stages
// and boundaries take, as its simulation says, and how many micro-batches memory has room for.
// Knows no schedule.

#include "medley/schedule/timer.h"
#include "medley/sim/simulate.h"

namespace medley {

// Of one micro-batch, a stage takes as long as its slowest device computes and waits for the others
// of its stage, and as long for the gradients of weights where they are calls of their own; a
// boundary, as long as the most loaded link is occupied by what is sent over it in that phase. What
// goes past a stage is left out.
//
// The limit of a stage is what it has in flight now and as many more as the memory that is left has
// room for, at what its forward calls save and what is on its way in the lanes; 1 if there is none.
// An estimate, on the safe side: what more in flight at neighbours adds is not in it.
//
// Requires: the pipeline has several stages; `simulation` is of this program, with memory.
ScheduleRequest schedule_request(const Program& program,
                                 int pipeline,
                                 const CostModel& costs,
                                 const Simulation& simulation);

// Returns the most micro-batches between the start of their forward and the end of their backward
// call, [stage].
std::vector<int> in_flight(const Program& program);

}  // namespace medley
