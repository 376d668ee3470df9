#pragma once

// Pipelines under several schedules: the output of `medley simulate --schedules`.

#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/plan/plan.h"

namespace medley {

// Simulates the plan once per schedule with the counts in flight of each pipeline of several
// stages, limited by the memory that the plan leaves. `names`: schedules, or "all". Throws
// Error(kCaller) if no pipeline has several stages.
std::string simulate_schedules(const Graph& graph,
                               const Plan& plan,
                               const CostModel& costs,
                               const std::vector<std::string>& names,
                               bool json);

}  // namespace medley
