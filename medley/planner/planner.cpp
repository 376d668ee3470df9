#include "medley/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/candidates/pools.h"
#include "medley/candidates/stage_options.h"
#include "medley/groups/autohet.h"
#include "medley/plan/compute_types.h"
#include "medley/plan/nearest.h"
#include "medley/planner/harp.h"
#include "medley/planner/megatron.h"
#include "medley/planner/node_loss.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/spmd.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

// Ends a search that another one made useless. It is no Error: none of its candidates fails.
struct NobodyWaits {};

Nanoseconds step_time(const Plan& plan, const Request& request) {
  return price(request, lower(request, plan));
}

// Returns the rows of the table that `auto` runs, in order.
std::vector<size_t> asked_by_auto() {
  std::vector<size_t> rows;
  for (const AskedByAuto turn : {AskedByAuto::kFirst, AskedByAuto::kNext, AskedByAuto::kLast})
    for (size_t row = 0; row < strategies().size(); ++row)
      if (strategies()[row].asked_by_auto == turn) rows.push_back(row);
  return rows;
}

// Finds the plan with the shortest predicted step; ties go to the earlier row of the table.
class Auto {
 public:
  explicit Auto(const Request& request)
      : request_(request),
        rows_(asked_by_auto()),
        known_(request.cache.outcomes ? *request.cache.outcomes
                                      : std::map<std::string, Outcome>()) {}

  Outcome run() {
    ask_from(0);
    if (!pools_asked_) ask_pools();
    if (!best_) return explain();
    if (best_->bound && least_)
      best_->bound->least_ns = std::min(best_->bound->step_ns, least_->value);
    return std::move(*best_);
  }

 private:
  void keep(const Plan& found, size_t row) {
    const Nanoseconds time =
        found.bound ? Nanoseconds{found.bound->step_ns} : step_time(found, request_);
    if (best_ && std::pair(time, row) >= std::pair(best_time_, best_row_)) return;
    best_time_ = time;
    best_row_ = row;
    best_ = found;
  }

  void ask_from(size_t first) {
    for (size_t i = first; i < rows_.size(); ++i) {
      if (best_ && is_over(request_)) break;
      const bool is_next = strategies()[rows_[i]].asked_by_auto == AskedByAuto::kNext;
      const bool is_early = best_ && is_next && ask_meshes(i);
      const bool is_hap = best_ && !is_early && name(i) == "hap";
      if (is_hap && is_slow_mesh()) continue;
      if (is_hap) return ask_beside(i);
      ask(i);
    }
  }

  std::string name(size_t i) const { return std::string(strategies()[rows_[i]].name); }

  Request limited() const {
    Request one = request_;
    if (best_) one.faster_than = best_time_;
    return one;
  }

  void ask(size_t i) {
    Request one = limited();
    one.cache.outcomes = &known_;
    one.cache.stages = &stages_;
    one.listener.proved = [&](Nanoseconds proved) {
      least_ = std::min(least_.value_or(proved), proved);
    };
    report(request_, name(i), i + 1, rows_.size());
    take(i, answered(one, name(i)));
  }

  // Returns the plan of a strategy, or its failure; the others continue.
  static Outcome answered(const Request& one, const std::string& strategy) {
    Outcome answer = Infeasible{};
    if (auto why = why_left_out(one, [&] { answer = one.ask(strategy); }))
      answer = Infeasible{std::move(*why)};
    return answer;
  }

  void take(size_t i, Outcome answer) {
    const Outcome& outcome = known_.emplace(name(i), std::move(answer)).first->second;
    if (const auto* no = std::get_if<Infeasible>(&outcome))
      reasons_[rows_[i]] = *no;
    else if (auto why = why_left_out(request_, [&] { keep(std::get<Plan>(outcome), rows_[i]); }))
      reasons_[rows_[i]] = {std::move(*why)};
  }

  // Runs this search for a mesh in parallel with later ones. It is mostly sequential and shares
  // nothing with searches for chains.
  void ask_beside(size_t i) {
    const std::map<std::string, Outcome> known = known_;
    Request one = limited();
    one.cache.outcomes = &known;
    Outcome answer = Infeasible{};
    const auto others = [&] { ask_from(i + 1); };
    for_each_in_parallel_with(others, 1, [&](size_t, const std::atomic<bool>& left_out) {
      one.listener.progress = [&](std::string_view, size_t, size_t) {
        if (left_out) throw NobodyWaits();
      };
      answer = answered(one, name(i));
    });
    take(i, std::move(answer));
  }

  // If the model fits on each device, the best mesh is found sooner than chains, which then have a
  // plan to beat. Returns false if hap has already run.
  bool ask_meshes(size_t next) {
    const auto early = rows_.begin() + static_cast<std::ptrdiff_t>(next);
    const auto hap = std::find_if(
        early, rows_.end(), [](size_t row) { return strategies()[row].name == "hap"; });
    if (hap == rows_.end()) return false;
    std::rotate(early, hap, hap + 1);
    ask_pools();
    return true;
  }

  // Searches meshes of one pool, which harp's chains search less closely.
  void ask_pools() {
    pools_asked_ = true;
    const std::vector<DevicePool> pools = pools_of(request_);
    for (size_t p = 0; pools.size() > 1 && p < pools.size(); ++p) {
      if (best_ && is_over(request_)) break;
      Request one = limited();
      one.devices = names_of(request_.cluster, pools[p].devices);
      one.cache.outcomes = nullptr;
      if (best_ && work_bound(one) >= best_time_) continue;
      if (best_ && is_slow(pools[p])) continue;
      const Outcome outcome = answered(one, "hap");
      if (const auto* found = std::get_if<Plan>(&outcome))
        why_left_out(request_, [&] { keep(*found, strategies().size()); });
    }
  }

  // Returns whether the model on a mesh of the pool is slower than the best plan, or does not fit,
  // by sums over the layers of chains. These cost far less than a search for the mesh. Returns
  // false without chains.
  bool is_slow(const DevicePool& pool) const {
    const double room =
        request_.cluster.kind(pool.devices[0]).memory_bytes * static_cast<double>(kSumsOff) / 100;
    return pool.uniform && is_slow({pool.devices},
                                   microbatch_counts(request_),
                                   Bytes{static_cast<int64_t>(room)},
                                   best_time_);
  }

  // Like is_slow(), for a mesh of all devices with any memory. Overlap of messages and compute
  // hides at most half of the sums.
  bool is_slow_mesh() const {
    const std::vector<int> devices = devices_of(request_);
    return is_slow({devices, speeds_of(request_, devices)},
                   {microbatch_counts(request_).front()},
                   Bytes{std::numeric_limits<int64_t>::max()},
                   best_time_ * int64_t{2});
  }

  bool is_slow(const StageMesh& mesh,
               const std::vector<int64_t>& counts,
               Bytes room,
               Nanoseconds known) const {
    const auto chains = stages_.find(kLayersOfChains.per_block);
    const Nanoseconds below{known.value * kSumsOff / 100};
    return chains != stages_.end() &&
           !step_on_mesh(request_, mesh, counts, room, below, *chains->second);
  }

  // Runs the first strategies again, which may have failed under a limit.
  Infeasible explain() const {
    std::vector<std::pair<std::string, Infeasible>> reasons;
    for (const auto& [row, reason] : reasons_) {
      const Strategy& strategy = strategies()[row];
      const std::string name(strategy.name);
      reasons.emplace_back(name, reason);
      if (strategy.asked_by_auto == AskedByAuto::kFirst)
        if (const Outcome again = answered(request_, name);
            std::holds_alternative<Infeasible>(again))
          reasons.back().second = std::get<Infeasible>(again);
    }
    return {fmt::format("none of {} strategies has one", reasons.size()),
            fmt::format("\n  {}", fmt::join(in_short(reasons), "\n  "))};
  }

  const Request& request_;
  std::vector<size_t> rows_;  // table rows, in running order
  std::map<std::string, Outcome> known_;
  std::map<int, std::shared_ptr<StageSynthesis>> stages_;  // shares repeated searches
  std::optional<Plan> best_;
  Nanoseconds best_time_;
  size_t best_row_ = 0;
  std::map<size_t, Infeasible> reasons_;  // [row]
  std::optional<Nanoseconds> least_;      // bound of all searched pipelines
  bool pools_asked_ = false;
};

Outcome plan_auto(const Request& request) { return Auto(request).run(); }

template <typename Found>
[[noreturn]] void refuse(const char* place, const Found& found, const std::string& expected) {
  throw Error(Blame::kCaller, fmt::format("{}: found {}, expected {}", place, found, expected));
}

const Strategy* find_strategy(std::string_view name) {
  for (const Strategy& strategy : strategies())
    if (strategy.name == name) return &strategy;
  return nullptr;
}

[[noreturn]] void refuse_strategy(const Request& request) {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) names.emplace_back(strategy.name);
  refuse(
      "strategy", '"' + request.strategy + '"', fmt::format("one of {}", fmt::join(names, ", ")));
}

// Checks that all devices are connected. Two nodes of a pool and two devices of a node suffice.
void check_reachable(const Request& request) {
  const Topology& topology = request.costs->topology();
  std::map<std::pair<int, int>, int> nodes;  // (pool, node) -> devices checked
  std::map<int, int> pools;                  // pool -> nodes checked
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

std::vector<std::string> in_short(const std::vector<std::pair<std::string, Infeasible>>& reasons) {
  using Line = std::pair<std::string, std::string>;
  std::vector<Line> lines;  // strategies, reason
  std::string advice;
  for (const auto& [name, why] : reasons) {
    if (!why.advice.empty()) advice = fmt::format("for {}, {}", name, why.advice);
    const auto same = std::ranges::find(lines, why.reason, &Line::second);
    if (same == lines.end())
      lines.emplace_back(name, why.reason);
    else
      same->first += ", " + name;
  }
  std::vector<std::string> text;
  for (const auto& [names, line] : lines) text.push_back(names + ": " + line);
  if (!advice.empty()) text.push_back(advice);
  return text;
}

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> kAll = {
      {"auto",
       "the plan of all strategies whose predicted step is shortest",
       AskedByAuto::kNever,
       plan_auto,
       work_bound},
      {"data-parallel-even",
       "the whole model on every device, the same number of rows for each",
       AskedByAuto::kFirst,
       data_parallel_even,
       spmd_lower_bound},
      {"data-parallel-proportional",
       "the whole model on every device, rows by speed",
       AskedByAuto::kFirst,
       data_parallel_proportional,
       spmd_lower_bound},
      {"hap-even",
       "as hap, but all devices get equal shares of everything",
       AskedByAuto::kNever,
       hap_even,
       spmd_lower_bound},
      {"hap",
       "every op and tensor divided as suits it best, found by search (SPMD synthesis)",
       AskedByAuto::kLast,
       hap,
       spmd_lower_bound},
      {"harp",
       "a pipeline over unlike pools, cut where that balances it, transfers hidden",
       AskedByAuto::kNext,
       harp,
       work_bound},
      {"megatron",
       "the best grid of equal stages, each with data or tensor parallelism",
       AskedByAuto::kLast,
       megatron,
       work_bound},
      {"autohet",
       "several unequal pipelines, each with its share of the rows",
       AskedByAuto::kLast,
       autohet,
       work_bound},
  };
  return kAll;
}

void check(const Request& request) {
  if (request.global_batch < 1 || request.global_batch > kMaxLength)
    refuse("global batch", request.global_batch, fmt::format("1 to {} rows", kMaxLength));
  if (request.microbatches < 0 || request.microbatches > request.global_batch)
    refuse("microbatches",
           request.microbatches,
           fmt::format("1 to {}, the global batch", request.global_batch));
  if (request.tolerate_node_loss < 0 || request.tolerate_node_loss > 1)
    refuse("tolerate_node_loss", request.tolerate_node_loss, "0 or 1, the nodes that may be lost");
  if (request.loss_over_microbatches && request.microbatches == 0)
    refuse(
        "loss over microbatches", "no number of micro-batches", "one, which the loss depends on");
  if (request.microbatches > kMostMicrobatches)
    refuse("microbatches", request.microbatches, fmt::format("1 to {}", kMostMicrobatches));
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
  Request asked = request;
  asked.cache.find = [](const Request& one) {
    const Strategy* strategy = find_strategy(one.strategy);
    MEDLEY_CHECK(strategy);
    return strategy->plan(one);
  };
  std::optional<GraphAnalysis> analysis;
  if (!request.cache.analysis)
    asked.cache.analysis = &analysis.emplace(analyse(request.graph, request.optimizer));
  if (request.loss_over_microbatches) {
    if (!analysis) asked.cache.analysis = &analysis.emplace(*request.cache.analysis);
    analysis->coupling.clear();  // cross-sample dependence only within a micro-batch
  }
  if (request.tolerate_node_loss > 0)
    asked.extra_cost = [&](const Program& program, Nanoseconds step) {
      return replication_cost(program, request.cluster, step).costs();
    };
  std::mutex several;
  std::set<std::string> left_out;
  asked.listener.left_out = [&](const std::string& why) {
    const std::scoped_lock lock(several);
    left_out.insert(why);
  };
  Outcome outcome = asked.ask(request.strategy);
  auto* found = std::get_if<Plan>(&outcome);
  for (const std::string& why : left_out)
    if (found && request.listener.left_out) request.listener.left_out(why);
  if (found) found->loss_over_microbatches = request.loss_over_microbatches;
  if (found) note_types(*found, request.graph, request.cluster);
  if (found && request.tolerate_node_loss > 0) {
    found->tolerate_node_loss = request.tolerate_node_loss;
    const ReplicationCost needs = replication_cost(lower(asked, *found), request.cluster, {1});
    if (needs.without > 0) return Infeasible{cannot_tolerate_node_loss(needs)};
  }
  return outcome;
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

}  // namespace medley
