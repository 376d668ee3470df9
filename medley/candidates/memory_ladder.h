#pragma once

// Makes candidates fit. A stage that lacks memory gets fewer micro-batches in flight, then a higher
// memory price, then more recomputation (blocks, then all).

#include "medley/candidates/candidate_trials.h"

namespace medley {

// Repairs each stage that fits by the sum over its layers, but not as a whole. Raises its memory
// price, or its recomputation if that makes it fit.
void make_room(CandidateTrials& trials, PlanCandidate& candidate);

// Like make_room(), for stages with too few micro-batches in flight to overlap their transfers.
// Keeps the change if the timer predicts a gain.
void make_more_room(CandidateTrials& trials, PlanCandidate& candidate);

// Increases recomputation in stages that lack memory to overlap transfers. Returns whether a stage
// changed and the change can gain, since recomputation costs time.
bool recompute_more(CandidateTrials& trials, PlanCandidate& candidate, std::string_view how);

// Lowers and simulates a candidate until it fits: with fewer in flight, less memory or more
// recomputation, whichever the timer ranks fastest. Returns whether it fits below `below`; `trial`
// is then its result. `trial`: its trial on entry, if one exists. Sets an empty `misfit` to the
// reason for a misfit. Throws if it cannot be lowered.
bool fit(CandidateTrials& trials,
         PlanCandidate& candidate,
         std::optional<CandidateTrial>& trial,
         std::optional<Nanoseconds> below,
         std::string& misfit);

}  // namespace medley
