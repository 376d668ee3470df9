#pragma once

// What a graph does not allow of a plan: several micro-batches where rows meet, several pipelines
// where the forward phase changes buffers. Each throws Error(kCaller) naming the place in the plan.

#include <vector>

#include "medley/lower/connect.h"
#include "medley/lower/lower.h"

namespace medley {

// How many micro-batches there are of which each is a batch of its own; 0 if the batch is all of
// them, or there is one.
int64_t count_batches(const Plan& plan);

void check_rows_that_meet(const GraphAnalysis& analysis, const Plan& plan);

void check_one_pipeline(const Plan& plan, const Graph& graph);

// A buffer that micro-batches change one after the other is read in the stage that changes it.
void check_buffers_in_one_stage(const std::vector<DecidedStage>& stages,
                                const std::vector<Connections>& connections);

}  // namespace medley
