#pragma once

// SPMD synthesis for one mesh (HAP, https://arxiv.org/abs/2401.05965) alternates between decisions
// and ratios. Decisions come from an exact search over the joint graph (spmd_problem.h, pbqp.h),
// ratios from a linear program (ratios.h); the simulator accepts or rejects both:
//
//   for each start (speed, even ...):  decide -> lower -> simulate -> ratios -> decide ...  until
//   nothing is gained; too much memory: a price per byte, then more micro-batches
//
// Candidates include data parallelism by both splits, so the result is never slower than those.

#include "medley/synthesis/request.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {

Outcome hap(const Request& request);
// The same search with equal shares for all devices: the best plan for a framework that assumes
// identical devices.
Outcome hap_even(const Request& request);

// Returns a lower bound of the step time of every plan in the search space, in its model. C: time
// in which a device computes or is idle for a communication; O: time of overlapped communication
// (gradients, gathered parameters):
//
//   step >= max(C, O) >= k C + (1 - k) O   for every k in [0, 1]
//
// If micro-batches may be interleaved, waits of one of them count in O, else in both. The right
// side is a pairwise problem whose optimum is a bound; the best over several k is returned. Devices
// are weighted by speed, so the best division of each op costs at most as much as any division.
// Requires: `request` has costs and an analysis.
Nanoseconds spmd_lower_bound(const Request& request);

}  // namespace medley
