#pragma once

// Restrictions of a graph on plans: several micro-batches with cross-sample dependence, several
// pipelines if the forward phase changes buffers. Each check throws Error(kCaller) naming the place
// in the plan.

#include <vector>

#include "medley/lower/connect.h"
#include "medley/lower/lower.h"

namespace medley {

// Returns the number of micro-batches that are batches of their own; 0 if the batch is all of them,
// or if there is one.
int64_t count_batches(const Plan& plan);

void check_cross_sample(const GraphAnalysis& analysis, const Plan& plan);

void check_one_pipeline(const Plan& plan, const Graph& graph);

// Checks that a buffer which micro-batches change in turn is read only in the stage that changes
// it.
void check_buffers_in_one_stage(const std::vector<DecidedStage>& stages,
                                const std::vector<Connections>& connections);

}  // namespace medley
