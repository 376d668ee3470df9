#pragma once

// Moves cuts of chains into layers, between their parts. Stages, devices, micro-batches and
// rows stay unchanged. A stage's new time is scaled from its time as a whole:
//
//   stages         | a b c d | e f g h |     20 and 14 ms; the sums of their layers 22 and 15 ms
//   a cut earlier  | a b c | d e f g h |     20 - (20 / 22) d and 14 + (14 / 15) d
//
// The plan with the shortest estimated step is synthesised, and the search resumes from there.

#include "medley/candidates/candidates.h"

namespace medley {

struct FinerPlan {
  Plan plan;
  Nanoseconds step;  // by the simulator
};

// Returns the fastest timed candidate with finer cuts; nullopt if none beats the best. Requires:
// `candidates` are of kLayersOfChains, and have a best one.
std::optional<FinerPlan> with_finer_cuts(const Request& request,
                                         const std::vector<DevicePool>& pools,
                                         CandidateSet& candidates);

// Returns the best candidate or a faster finer cut, with the lower bound `least`.
Outcome best_with_finer_cuts(const Request& request,
                             const std::vector<DevicePool>& pools,
                             CandidateSet& candidates,
                             Nanoseconds least);

}  // namespace medley
