#pragma once

// Finds a plan. A strategy is a row in a table; `auto` asks all of them and takes the plan whose
// predicted step is shortest. Knows nothing of how plans are run.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/plan/plan.h"
#include "medley/program/lower.h"

namespace medley {

using Outcome = std::variant<Plan, Infeasible>;

struct Request {
  const Graph& graph;
  const Cluster& cluster;
  const CostModel* costs = nullptr;  // of the cluster; null: analytic
  std::string strategy = "auto";
  int64_t global_batch = 0;
  int64_t microbatches = 0;          // 0: as few as fit into memory
  std::vector<std::string> devices;  // to be used; empty: all of the cluster
  Optimizer optimizer;               // whose state and update are counted
  // A plan that takes as long is of no use, and need not be looked for.
  std::optional<Nanoseconds> faster_than{};
  // What was found out before: plan() fills in what is null, so that strategies find it there.
  const Groundwork* ground = nullptr;                     // of the graph and the optimizer
  const std::map<std::string, Outcome>* known = nullptr;  // by strategy, for this request
  // Told now and then what is being done: "harp", the third of seven. May throw, which ends it.
  std::function<void(std::string_view what, size_t number, size_t of)> progress{};
};

// Throws Error(kCaller) for a request that makes no sense: an unknown strategy or device, no rows,
// more micro-batches than rows.
[[nodiscard]] Outcome plan(const Request& request);

struct Strategy {
  std::string_view name;
  std::string_view help;
  Outcome (*plan)(const Request& request);
  // Of the step of any plan of its search, in the model that it searches with. Requires: `request`
  // has costs and ground.
  Nanoseconds (*lower_bound)(const Request& request);
};
// All, `auto` first.
const std::vector<Strategy>& strategies();

// The least of the bounds of these strategies. Requires: names of the table; `request` has costs
// and ground.
Nanoseconds lower_bound(const std::vector<std::string>& strategies, const Request& request);

// For strategies: tells whoever wants to know.
void report(const Request& request, std::string_view what, size_t number, size_t of);
// For strategies: what another one comes to, if it is not known already.
// Requires: a name of the table; `request` has costs and ground.
[[nodiscard]] Outcome outcome_of(std::string_view strategy, const Request& request);

}  // namespace medley
