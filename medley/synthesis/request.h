#pragma once

// Input and output of all strategies: a graph, a cluster and a number of rows; a plan, or the
// reason why none exists. Knows no strategy.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"
#include "medley/lower/lower.h"
#include "medley/plan/plan.h"

namespace medley {

using Outcome = std::variant<Plan, Infeasible>;

class StageSynthesis;  // candidates/stage_options.h
struct Request;

// Results shared by searches of one graph, cluster and costs.
struct SearchCache {
  const GraphAnalysis* analysis = nullptr;  // with the optimizer; null: set by plan()
  const std::map<std::string, Outcome>* outcomes = nullptr;  // this request's, by strategy
  // Syntheses of earlier strategies, by layers of a block; null: no sharing.
  std::map<int, std::shared_ptr<StageSynthesis>>* stages = nullptr;
  // Computes a missing outcome of the request's strategy; set by plan().
  std::function<Outcome(const Request&)> find{};
};

// Callbacks of a search; each may be null.
struct SearchListener {
  // Receives a lower bound of all plans of a search, which may have no plan yet.
  std::function<void(Nanoseconds)> proved{};
  // Receives progress: "harp", the third of seven. May throw, which ends the search.
  std::function<void(std::string_view what, size_t number, size_t of)> progress{};
  // Receives the reason why a candidate is skipped. Called from threads; plan() forwards unique
  // texts in order once it has a plan.
  std::function<void(const std::string& why)> left_out{};
  // Polled: returns whether to stop with the best plan so far, if any. Plans then depend on machine
  // speed.
  std::function<bool()> is_over{};
};

struct Request {
  const Graph& graph;
  const Cluster& cluster;
  const CostModel* costs = nullptr;  // cluster's costs; null: analytic
  std::string strategy = "auto";
  int64_t global_batch = 0;
  int64_t microbatches = 0;          // 0: as few as fit in memory
  std::vector<std::string> devices;  // to be used; empty: all of the cluster
  Optimizer optimizer;               // whose state and update are counted
  // Number of nodes, 0 or 1, that may be lost without losing the run's state. Its cost is included
  // in a plan's cost.
  int tolerate_node_loss = 0;
  bool loss_over_microbatches = false;  // as of a Plan; requires `microbatches`
  // The step time to beat: strategies may skip plans that are not faster.
  std::optional<Nanoseconds> faster_than{};
  // Optimality gap, as a share of the step, that suffices.
  std::optional<double> gap{};
  // Returns the extra cost of a step of length `step`; set by plan(). Null: 0.
  std::function<Nanoseconds(const Program& program, Nanoseconds step)> extra_cost{};
  SearchCache cache{};
  SearchListener listener{};

  // For strategies: returns the outcome of another one. Requires: `cache.find`.
  [[nodiscard]] Outcome ask(std::string_view other) const;
};

// For strategies: call the listener.
void report(const Request& request, std::string_view what, size_t number, size_t of);
void prove(const Request& request, Nanoseconds least);
bool is_over(const Request& request);

// For strategies: returns the program of a candidate, without the plan's hash. Requires: an
// analysis.
Program lower(const Request& request, const Plan& plan);

// For strategies: returns the criterion for plans, the simulated step plus extra costs. Requires:
// costs.
Nanoseconds price(const Request& request, const Program& program);

// For strategies: calls attempt(), which evaluates one candidate. If that throws because the
// candidate cannot be lowered or priced, returns the reason and skips the candidate. Rethrows
// errors of the environment, and exceptions that end a search (`progress`).
template <typename Attempt>
std::optional<std::string> why_left_out(const Request& request, const Attempt& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    if (error.blame() == Blame::kEnvironment) throw;
    if (request.listener.left_out) request.listener.left_out(error.what());
    return error.what();
  }
  return std::nullopt;
}

// Returns device indices of the cluster, in request order.
std::vector<int> devices_of(const Request& request);

}  // namespace medley
