#pragma once

// What all strategies are asked and what they answer: a graph, a cluster and a number of rows; a
// plan, or the sentence why there is none. Knows no strategy.

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

// Results that searches share, all of one graph, cluster and costs.
struct SearchCache {
  const GraphAnalysis* analysis = nullptr;  // with the optimizer; plan() fills in what is null
  const std::map<std::string, Outcome>* outcomes = nullptr;  // of this request, by strategy
  // The syntheses of earlier strategies, by layers of a block; null: each strategy begins anew.
  std::map<int, std::shared_ptr<StageSynthesis>>* stages = nullptr;
  // Finds an outcome that is missing, by the strategy that the request names; set by plan().
  std::function<Outcome(const Request&)> find{};
};

// Callbacks of a search; each may be null.
struct SearchListener {
  // Receives a bound, with or without a plan: no plan of a search takes less.
  std::function<void(Nanoseconds)> proved{};
  // Receives the work at hand now and then: "harp", the third of seven. May throw, which ends it.
  std::function<void(std::string_view what, size_t number, size_t of)> progress{};
  // Receives why a candidate is left out. Threads call it; plan() calls its caller's once it has a
  // plan, in order, each text once.
  std::function<void(const std::string& why)> left_out{};
  // Asked now and then: whether to answer with the best plan so far, if there is one. Plans then
  // depend on the machine.
  std::function<bool()> is_over{};
};

struct Request {
  const Graph& graph;
  const Cluster& cluster;
  const CostModel* costs = nullptr;  // of the cluster; null: analytic
  std::string strategy = "auto";
  int64_t global_batch = 0;
  int64_t microbatches = 0;          // 0: as few as fit into memory
  std::vector<std::string> devices;  // to be used; empty: all of the cluster
  Optimizer optimizer;               // whose state and update are counted
  // Of so many nodes, 0 or 1, any may be lost and the state of the run is still there: what a plan
  // needs for that is counted.
  int survive = 0;
  bool loss_over_microbatches = false;  // as of a Plan; requires `microbatches`
  // The step time to beat: strategies may leave out plans that take as long or longer.
  std::optional<Nanoseconds> faster_than{};
  // A plan that is shown to be at most this share of its step longer than the best of those
  // searched is good enough.
  std::optional<double> within{};
  // What a step of a plan costs besides, where it takes so long: set by plan(). Null: nothing.
  std::function<Nanoseconds(const Program& program, Nanoseconds step)> besides{};
  SearchCache cache{};
  SearchListener listener{};

  // For strategies: the outcome of another one. Requires: `cache.find`.
  [[nodiscard]] Outcome ask(std::string_view other) const;
};

// For strategies: call the listener.
void report(const Request& request, std::string_view what, size_t number, size_t of);
void prove(const Request& request, Nanoseconds least);
bool is_over(const Request& request);

// For strategies: the program of a plan that is looked at, not run: without the plan's hash.
// Requires: an analysis.
Program lower(const Request& request, const Plan& plan);

// For strategies: what plans are compared by, the step as simulated and what it costs besides.
// Requires: costs.
Nanoseconds price(const Request& request, const Program& program);

// For strategies: calls attempt(), which looks at one of several candidates. If that throws because
// the candidate cannot be lowered or priced, the candidate is left out: returns why. Failures of
// the environment, and exceptions that end a search (`progress`), pass through.
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

// Of the cluster, in the order of the request.
std::vector<int> devices_of(const Request& request);

}  // namespace medley
