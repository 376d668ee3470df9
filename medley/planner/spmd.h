#pragma once

// SPMD synthesis for one mesh (HAP, https://arxiv.org/abs/2401.05965): decisions and ratios in
// turn. Decisions by an exact search over the joint graph (spmd_problem.h, pbqp.h), ratios by a
// linear program (ratios.h), what is kept by the simulator:
//
//   for each start (by speed, even):  decide -> lower -> simulate -> ratios -> decide ...  until
//   nothing is gained; too much memory: a price per byte, then more micro-batches
//
// Data parallelism by either split is among the candidates, so that the answer is never worse.

#include "medley/planner/planner.h"
#include "medley/planner/spmd_problem.h"

namespace medley {

Outcome hap(const Request& request);

// A lower bound of the step time of every plan for this request, of this model: ops divided by
// speed over all devices, conversions at the prices of the search, gradients' exchange hidden.
Nanoseconds spmd_lower_bound(const Request& request);

}  // namespace medley
