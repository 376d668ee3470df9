#pragma once

// What comes before and after a search over chains: requests that make no sense are refused, and a
// chain of stages becomes a plan. Private to this folder.

#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Throws Error(kCaller) as plan_pipeline() says.
void verify(const PipelineRequest& request, size_t most_pools = kMostCountedPools);

// The plan but for its period and what depends on it.
PipelinePlan plan_of(const Table& table, int choice, const Chain& chain);

// The cost of a chain in which some stages count for what they fill only: the last one counts whole
// in it, where the one that all others wait for does.
int64_t cost_of(const Chain& chain);

// The fewest micro-batches in flight on each stage whose period is that, at most all.
std::vector<int> counts_at(const ScheduleRequest& request, Nanoseconds period);

// Finds the shortest period for which the plan fits, at most `period` if it fits for that, and
// fills in the rest. Requires: its chain costs `cost`.
void settle(PipelinePlan& plan, int64_t period, int64_t cost);

}  // namespace medley::pipeline
