#pragma once

// Pipelines under several schedules: what `medley simulate --schedules` prints.

#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/plan/plan.h"

namespace medley {

// The plan again and again, each time with the counts in flight that a schedule gives each pipeline
// of several stages (`names`, or all of the table for "all"), held to the memory that the plan's
// own leave. Throws Error(kCaller) if no pipeline has several stages.
std::string simulate_schedules(const Graph& graph,
                               const Plan& plan,
                               const CostModel& costs,
                               const std::vector<std::string>& names,
                               bool json);

}  // namespace medley
