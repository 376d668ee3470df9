#pragma once

// Bounds a candidate's step from below by the time in which node ports carry its messages. The
// bound holds for every schedule and needs no synthesised stage.

#include "medley/candidates/candidate_places.h"

namespace medley {

// Returns the least time of a node's ports for all messages between its stages and other nodes. No
// simulated plan of the candidate takes less.
Nanoseconds least_step(const CandidatePlaces& places, const PlanCandidate& candidate);

// Returns whether ports take at least as long as the step to beat, as placed.
bool loses_by_ports(const CandidatePlaces& places, const PlanCandidate& candidate);

// Like loses_by_ports(), in both device mappings and for every division of rows.
bool cannot_win(const CandidatePlaces& places, const PlanCandidate& candidate);

}  // namespace medley
