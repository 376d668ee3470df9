#pragma once

// How long the ports of nodes carry what a candidate sends: no step of it takes less, whatever its
// schedule and whatever else they carry. No stage is synthesised for that.

#include "medley/candidates/candidate_places.h"

namespace medley {

// Returns how long the ports of a node take at least for all that its stages exchange with those on
// others. No plan of the candidate takes less, as the simulator sees it.
Nanoseconds least_step(const CandidatePlaces& places, const PlanCandidate& candidate);

// Returns whether ports take as long as the step to beat, as the candidate is placed.
bool loses_by_ports(const CandidatePlaces& places, const PlanCandidate& candidate);

// The same in both placements, however the rows are divided among pipelines.
bool cannot_win(const CandidatePlaces& places, const PlanCandidate& candidate);

}  // namespace medley
