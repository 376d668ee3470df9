#pragma once

// Prepares and finishes a search over chains: rejects invalid requests and turns a chain of stages
// into a plan. Private to this folder.

#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Throws Error(kCaller) as specified at plan_pipeline().
void verify(const PipelineRequest& request, size_t most_pools = kMostCountedPools);

// Returns the plan without its period and values that depend on it.
PipelinePlan plan_of(const Table& table, int choice, const Chain& chain);

// Returns the chain's cost with the stage of largest time - fill counted in full. The search counts
// the last stage in full instead.
int64_t cost_of(const Chain& chain);

// Returns the fewest micro-batches in flight per stage for `period`, at most all.
std::vector<int> counts_at(const ScheduleRequest& request, Nanoseconds period);

// Sets the shortest period for which the plan fits, at most `period` if it fits for that, and the
// remaining fields. Requires: its chain costs `cost`.
void settle(PipelinePlan& plan, int64_t period, int64_t cost);

}  // namespace medley::pipeline
