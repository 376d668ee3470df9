#pragma once

// A plan in plain words and tables: who computes which rows, who holds what.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"

namespace medley {

struct ExplainOptions {
  const Graph* graph = nullptr;  // adds what is in the graph: without it only what the plan says
  const CostModel* costs = nullptr;  // of a cluster: with a graph, adds kinds, memory and times
  bool expanded = false;             // every input, op and communication; needs the graph
  const GraphAnalysis* analysis = nullptr;  // of the graph, where it is known already
};

// Requires: verify(plan, graph, cluster) has passed where graph and costs are given.
std::string explain(const Plan& plan, const ExplainOptions& options);
nlohmann::ordered_json explain_json(const Plan& plan, const ExplainOptions& options);

}  // namespace medley
