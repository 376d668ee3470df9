#include "medley/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "medley/base/error.h"
#include "medley/plan/nearest.h"
#include "medley/planner/data_parallel.h"
#include "medley/planner/harp.h"
#include "medley/planner/megatron.h"
#include "medley/planner/pools.h"
#include "medley/planner/spmd.h"
#include "medley/planner/work_bound.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

Nanoseconds step_time(const Plan& plan, const Request& request) {
  return simulate(lower(*request.ground, plan, request.cluster), *request.costs).step;
}

// All that `auto` asks, those that are quick for what they find first: others may then give up.
std::vector<const Strategy*> asked_by_auto();

// The plan whose predicted step is shortest; of equals that of the earlier row of the table.
Outcome plan_auto(const Request& request) {
  std::optional<Plan> best;
  Nanoseconds best_time;
  size_t best_row = 0;
  const auto keep = [&](const Plan& found, size_t row) {
    const Nanoseconds time = step_time(found, request);
    if (best && std::pair(time, row) >= std::pair(best_time, best_row)) return;
    best_time = time;
    best_row = row;
    best = found;
  };
  const auto limited = [&] {
    Request one = request;
    if (best) one.faster_than = best_time;
    return one;
  };
  std::map<std::string, Outcome> known =
      request.known ? *request.known : std::map<std::string, Outcome>();
  std::string reasons;
  const std::vector<const Strategy*> all = asked_by_auto();
  for (size_t i = 0; i < all.size(); ++i) {
    Request one = limited();
    one.known = &known;
    report(request, all[i]->name, i + 1, all.size());
    const Outcome& outcome =
        known.emplace(all[i]->name, outcome_of(all[i]->name, one)).first->second;
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", all[i]->name, no->reason);
      continue;
    }
    keep(std::get<Plan>(outcome), static_cast<size_t>(all[i] - strategies().data()));
  }
  // A mesh of one pool: among the chains of harp such meshes are not searched as closely.
  const std::vector<DevicePool> pools = pools_of(request);
  for (size_t p = 0; pools.size() > 1 && p < pools.size(); ++p) {
    Request one = limited();
    one.devices = names_of(request.cluster, pools[p].devices);
    one.strategy = "hap";
    one.known = nullptr;
    if (best && work_bound(one) >= best_time) continue;
    const Outcome outcome = hap(one);
    if (const auto* found = std::get_if<Plan>(&outcome)) keep(*found, strategies().size());
  }
  if (!best) return Infeasible{reasons};
  return std::move(*best);
}

template <typename Found>
[[noreturn]] void refuse(const char* place, const Found& found, const std::string& expected) {
  throw Error(Blame::kCaller, fmt::format("{}: found {}, expected {}", place, found, expected));
}

void check(const Request& request) {
  if (request.global_batch < 1 || request.global_batch > kMaxLength)
    refuse("global batch", request.global_batch, fmt::format("1 to {} rows", kMaxLength));
  if (request.microbatches < 0 || request.microbatches > request.global_batch)
    refuse("microbatches",
           request.microbatches,
           fmt::format("1 to {}, the global batch", request.global_batch));
  if (request.cluster.devices.empty()) refuse("cluster", "no devices", "at least one");
  std::vector<std::string> names;
  for (const Device& device : request.cluster.devices) names.push_back(device.name);
  std::set<std::string> seen;
  for (const std::string& name : request.devices) {
    if (!find_device(request.cluster, name))
      refuse("devices", '"' + name + '"', "a device of the cluster" + suggestion(name, names));
    if (!seen.insert(name).second) refuse("devices", '"' + name + "\" twice", "it once");
  }
}

const Strategy* find_strategy(std::string_view name) {
  for (const Strategy& strategy : strategies())
    if (strategy.name == name) return &strategy;
  return nullptr;
}

std::vector<const Strategy*> asked_by_auto() {
  std::vector<const Strategy*> all;
  for (const Strategy& strategy : strategies())
    if (strategy.plan != plan_auto && strategy.plan != hap_even)  // hap knows more
      all.push_back(&strategy);
  std::ranges::stable_partition(
      all, [](const Strategy* each) { return each->plan != hap && each->plan != megatron; });
  return all;
}

[[noreturn]] void refuse_strategy(const Request& request) {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.emplace_back(strategy.name);
  refuse(
      "strategy", '"' + request.strategy + '"', fmt::format("one of {}", fmt::join(names, ", ")));
}

// Devices that are not connected cannot train one model. It suffices to look at two nodes of a
// pool, and at two devices of a node.
void check_reachable(const Request& request) {
  const Topology& topology = request.costs->topology();
  std::map<std::pair<int, int>, int> nodes;  // (pool, node) -> devices looked at
  std::map<int, int> pools;                  // -> nodes looked at
  std::vector<int> examples;
  for (int device : devices_of(request)) {
    const Device& at = request.cluster.devices[static_cast<size_t>(device)];
    const auto [node, is_new] = nodes.try_emplace({at.pool, at.node}, 0);
    if (is_new && ++pools[at.pool] > 2) node->second = 2;
    if (++node->second > 2) continue;
    examples.push_back(device);
  }
  for (int from : examples)
    for (int to : examples)
      if (from != to) static_cast<void>(topology.path(from, to));
}

}  // namespace

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> kAll = {
      {"auto",
       "the plan of all strategies whose predicted step is shortest",
       plan_auto,
       work_bound},
      {"data-parallel-even",
       "the whole model on every device, the same number of rows for each",
       data_parallel_even,
       spmd_lower_bound},
      {"data-parallel-proportional",
       "the whole model on every device, rows by speed",
       data_parallel_proportional,
       spmd_lower_bound},
      {"hap-even",
       "as hap, but all devices get equal shares of everything",
       hap_even,
       spmd_lower_bound},
      {"hap",
       "every op and tensor divided as suits it best, found by search (SPMD synthesis)",
       hap,
       spmd_lower_bound},
      {"harp",
       "a pipeline over unlike pools, cut where that balances it, transfers hidden",
       harp,
       work_bound},
      {"megatron",
       "the best grid of equal stages, each with data or tensor parallelism",
       megatron,
       work_bound},
  };
  return kAll;
}

Outcome plan(const Request& request) {
  check(request);
  if (!request.costs) {
    const CostModel analytic(request.cluster);
    Request priced = request;
    priced.costs = &analytic;
    return plan(priced);
  }
  check_reachable(request);
  if (!find_strategy(request.strategy)) refuse_strategy(request);
  if (request.ground) return outcome_of(request.strategy, request);
  const Groundwork ground = lay_ground(request.graph, request.optimizer);
  Request grounded = request;
  grounded.ground = &ground;
  return outcome_of(request.strategy, grounded);
}

Nanoseconds lower_bound(const std::vector<std::string>& strategies, const Request& request) {
  std::map<Nanoseconds (*)(const Request&), Nanoseconds> known;
  Nanoseconds least{std::numeric_limits<int64_t>::max()};
  for (const std::string& name : strategies) {
    const auto bound = find_strategy(name)->lower_bound;
    const auto [found, is_new] = known.try_emplace(bound);
    if (is_new) found->second = bound(request);
    least = std::min(least, found->second);
  }
  return least;
}

void report(const Request& request, std::string_view what, size_t number, size_t of) {
  if (request.progress) request.progress(what, number, of);
}

Outcome outcome_of(std::string_view strategy, const Request& request) {
  if (request.known)
    if (const auto known = request.known->find(std::string(strategy));
        known != request.known->end())
      return known->second;
  Request one = request;
  one.strategy = strategy;
  const Strategy* row = find_strategy(strategy);
  MEDLEY_CHECK(row);
  return row->plan(one);
}

}  // namespace medley
