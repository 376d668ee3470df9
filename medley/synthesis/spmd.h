#pragma once

// SPMD synthesis for one mesh (HAP, https://arxiv.org/abs/2401.05965): decisions and ratios in
// turn. Decisions by an exact search over the joint graph (spmd_problem.h, pbqp.h), ratios by a
// linear program (ratios.h), what is kept by the simulator:
//
//   for each start (speed, even ...):  decide -> lower -> simulate -> ratios -> decide ...  until
//   nothing is gained; too much memory: a price per byte, then more micro-batches
//
// Data parallelism by either split is among the candidates, so that the answer is never worse.

#include "medley/synthesis/request.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {

Outcome hap(const Request& request);
// The same search where all devices get equal shares of everything: the best that a framework for
// identical devices could find.
Outcome hap_even(const Request& request);

// A lower bound of the step time of every plan that the search knows, in its model. With C the time
// that a device computes or stands still for a communication, and O that of what runs beside ops
// (gradients, gathered parameters):
//
//   step >= max(C, O) >= k C + (1 - k) O   for every k in [0, 1]
//
// Where several micro-batches may be at once, what one of them waits for belongs to O, else to
// both. The right side is a pairwise problem whose optimum is a bound; the best of several k is
// returned. Devices count by their speed, so that dividing as it is best for each op costs no more
// than any division. Requires: `request` has costs and an analysis.
Nanoseconds spmd_lower_bound(const Request& request);

}  // namespace medley
