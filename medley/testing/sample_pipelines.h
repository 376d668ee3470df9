#pragma once

// Pipelines for tests: random ones, equal for equal seeds on any machine, and all counts.

#include "medley/schedule/timer.h"

namespace medley {

// Returns 1 to max_stages stages and 1 to max_microbatches micro-batches of one or two sizes.
// Stages are equal or unequal, transfers take from zero to more than any stage, with and without
// latency, limits and pools.
ScheduleRequest random_request(uint64_t seed, int max_stages, int max_microbatches);

// Returns any executable order: forwards and backwards in any sequence, a different one on every
// stage.
PipelineOrder random_order(uint64_t seed, int stages, int microbatches);

// Returns all counts that do not grow along the pipeline and are within limits.
std::vector<std::vector<int>> all_counts(const std::vector<int>& limits);

}  // namespace medley
