#pragma once

// Explains a plan in text and tables: the samples and the state of each device. Or the layers of a
// graph on one page: repeated blocks once, with their count.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/lower/complete_stages.h"
#include "medley/plan/plan.h"

namespace medley {

struct ExplainOptions {
  const Graph* graph = nullptr;             // adds the parts that need a graph; null: only the plan
  const CostModel* costs = nullptr;         // with a graph, adds types, memory and times
  bool expanded = false;                    // every input, op and communication; needs the graph
  const GraphAnalysis* analysis = nullptr;  // for the graph, if already computed
};

// Requires: verify(plan, graph, cluster) has passed if graph and costs are given.
std::string explain(const Plan& plan, const ExplainOptions& options);
nlohmann::ordered_json explain_json(const Plan& plan, const ExplainOptions& options);

nlohmann::ordered_json layers_json(const Graph& graph);
std::string layers_text(const nlohmann::ordered_json& layers);

}  // namespace medley
