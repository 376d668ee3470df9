#pragma once

// Inputs for choosing the schedule of a lowered pipeline: times of stages and boundaries from its
// simulation, and the number of micro-batches that fit in memory. Knows no schedule.

#include "medley/schedule/timer.h"
#include "medley/sim/simulate.h"

namespace medley {

// Per micro-batch, a stage takes as long as its slowest device computes and waits within the stage;
// separate weight gradients likewise. A boundary takes as long as its messages of that phase occupy
// the most loaded link. Messages that only pass a stage are ignored.
//
// The limit of a stage is its current in-flight count plus the number that fits in free memory, by
// saved bytes and messages in the lanes; at least 1. It is a conservative estimate, which ignores
// the effect of higher counts at neighbours.
//
// Requires: the pipeline has several stages; `simulation` is of this program, with memory.
ScheduleRequest schedule_request(const Program& program,
                                 int pipeline,
                                 const CostModel& costs,
                                 const Simulation& simulation);

// Returns the most micro-batches, [stage], between the start of their forward and the end of their
// backward call.
std::vector<int> in_flight(const Program& program);

}  // namespace medley
