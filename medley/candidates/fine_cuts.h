#pragma once

// Cuts between parts of the layers of which chains are made. Stages, devices, micro-batches and
// rows stay as they are; what a stage takes with other layers is read off what it takes as a whole:
//
//   stages         | a b c d | e f g h |     20 and 14 ms; the sums of their layers 22 and 15 ms
//   a cut earlier  | a b c | d e f g h |     20 - (20 / 22) d and 14 + (14 / 15) d
//
// The shortest step by that is synthesised, and looked at again from there.

#include "medley/candidates/candidates.h"

namespace medley {

struct FinerPlan {
  Plan plan;
  Nanoseconds step;  // by the simulator
};

// The fastest of those that were timed, with finer cuts: nothing if none is faster than the best.
// Requires: `candidates` are of kLayersOfChains, and have a best one.
std::optional<FinerPlan> with_finer_cuts(const Request& request,
                                         const std::vector<DevicePool>& pools,
                                         CandidateSet& candidates);

// The best candidate, or a faster plan with finer cuts; it says that none takes less than `least`.
Outcome best_with_finer_cuts(const Request& request,
                             const std::vector<DevicePool>& pools,
                             CandidateSet& candidates,
                             Nanoseconds least);

}  // namespace medley
