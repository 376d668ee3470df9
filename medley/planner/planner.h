#pragma once

// Finds a plan. A strategy is a row in a table; `auto` asks all of them and takes the plan whose
// predicted step is shortest. Knows nothing of how plans are run.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/plan/plan.h"
#include "medley/program/prepare.h"

namespace medley {

struct Request {
  const Graph& graph;
  const Cluster& cluster;
  const CostModel* costs = nullptr;  // of the cluster; null: analytic
  std::string strategy = "auto";
  int64_t global_batch = 0;
  int64_t microbatches = 0;          // 0: as few as fit into memory
  std::vector<std::string> devices;  // to be used; empty: all of the cluster
  Optimizer optimizer;               // whose state and update are counted
};

using Outcome = std::variant<Plan, Infeasible>;

// Throws Error(kCaller) for a request that makes no sense: an unknown strategy or device, no rows,
// more micro-batches than rows.
[[nodiscard]] Outcome plan(const Request& request);

struct Strategy {
  std::string_view name;
  std::string_view help;
  Outcome (*plan)(const Request& request);
};
// All, `auto` first.
const std::vector<Strategy>& strategies();

}  // namespace medley
