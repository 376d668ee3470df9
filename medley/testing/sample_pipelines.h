#pragma once

// Pipelines for tests: drawn at random, the same one for the same seed on any machine, and all
// counts there are.

#include "medley/schedule/timer.h"

namespace medley {

// Returns 1 to max_stages stages and 1 to max_microbatches micro-batches of one or two sizes; equal
// and unequal stages, transfers from nothing to longer than any stage, with and without latency,
// limits and pools.
ScheduleRequest random_request(uint64_t seed, int max_stages, int max_microbatches);

// Returns any order that can be executed: forwards and backwards of micro-batches in any sequence,
// another one on every stage.
PipelineOrder random_order(uint64_t seed, int stages, int microbatches);

// Returns all counts that do not grow along the pipeline and are within limits.
std::vector<std::vector<int>> all_counts(const std::vector<int>& limits);

}  // namespace medley
