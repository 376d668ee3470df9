#pragma once

// Makes candidates fit: a stage that lacks memory has fewer micro-batches in flight, then decisions
// at a higher and higher price of memory, then more of it computed again (blocks, then all).

#include "medley/candidates/candidate_trials.h"

namespace medley {

// Changes each stage that has, as a whole, no room for a micro-batch, which the sum over its layers
// had: a higher price of memory, or more of it computed again, if that has.
void make_room(CandidateTrials& trials, PlanCandidate& candidate);

// Where stages as wholes have room for fewer micro-batches than hide transfers, the same if the
// timer says that it gains.
void make_more_room(CandidateTrials& trials, PlanCandidate& candidate);

// Computes more again in stages that lack room for as many micro-batches as hide transfers. Returns
// whether there are any, and it is of use: what computes more takes longer.
bool recompute_more(CandidateTrials& trials, PlanCandidate& candidate, std::string_view how);

// Lowers and simulates a candidate, and changes it until it fits: with fewer in flight, in less
// memory or computing more again, whichever the timer says is fastest. Returns whether it fits and
// takes less than `below`, as `trial` says then. `trial`: of the candidate; nothing: not made yet.
// Sets `misfit`, if it is empty, to why it does not fit. Throws if it cannot be lowered.
bool fit(CandidateTrials& trials,
         PlanCandidate& candidate,
         std::optional<CandidateTrial>& trial,
         std::optional<Nanoseconds> below,
         std::string& misfit);

}  // namespace medley
