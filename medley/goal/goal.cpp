#include "medley/goal/goal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

constexpr size_t kMostSets = 20000;
constexpr double kHour = 3600;
constexpr double kMostStep = 1e7;  // seconds; longer limits are ignored, so derived times fit
// Strategies compare sums over layers with the limit; for small steps they are off by this factor.
constexpr double kRough = 4;
// Bounds round op times to ns differently than steps do.
constexpr double kSure = 0.999;

// Identical nodes: of one pool, with equally many usable devices.
struct Kind {
  int pool = 0;
  std::vector<std::vector<int>> nodes;  // devices
};

std::vector<Kind> kinds_of(const Request& request) {
  std::map<std::pair<int, size_t>, Kind> kinds;
  for (std::vector<int>& node : by_node(request.cluster, devices_of(request))) {
    const int pool = request.cluster.devices[at(node[0])].pool;
    Kind& kind = kinds[{pool, node.size()}];
    kind.pool = pool;
    kind.nodes.push_back(std::move(node));
  }
  std::vector<Kind> all;
  for (auto& [key, kind] : kinds) all.push_back(std::move(kind));
  return all;
}

double price_of(const Request& request, int pool) {
  return request.cluster.pools[at(pool)].price_per_hour;
}

[[noreturn]] void refuse_goal(const std::string& text) { throw Error(Blame::kCaller, text); }

void check_goal(const Goal& goal, const std::vector<Kind>& kinds, const Request& request) {
  if (goal.steps < 1) refuse_goal(fmt::format("steps: found {}, expected at least 1", goal.steps));
  if (goal.deadline && !(goal.deadline->value > 0))
    refuse_goal(fmt::format("deadline: found {}, expected a time that is not over",
                            run_time_text(*goal.deadline)));
  if (goal.budget && !(*goal.budget > 0))
    refuse_goal(fmt::format("budget: found {:g}, expected more than 0", *goal.budget));
  const bool priced = std::any_of(kinds.begin(), kinds.end(), [&](const Kind& kind) {
    return price_of(request, kind.pool) > 0;
  });
  if (!priced && (goal.budget || goal.objective == Goal::Objective::kCost))
    refuse_goal(
        "no node has a price, expected price_per_hour in the cluster file, of nodes or devices");
  size_t sets = 1;
  for (const Kind& kind : kinds) sets = std::min(kMostSets + 1, sets * (kind.nodes.size() + 1));
  if (sets > kMostSets)
    refuse_goal(
        fmt::format("more than {} sets of nodes, expected fewer: name those that may be used as "
                    "devices, or let an entry of nodes stand for more devices",
                    kMostSets));
}

// The first nodes of each group, as many as `counts`.
struct NodeSet {
  std::vector<int> counts;
  double price_per_hour = 0;
  double seconds = 0;  // lower bound of the time of all steps
};

class GoalSearch {
 public:
  GoalSearch(const Goal& goal, const Request& request, const std::vector<Kind>& kinds)
      : goal_(goal), request_(request), kinds_(kinds) {
    list_sets();
  }

  std::optional<GoalPlan> best() {
    size_t number = 0;
    for (const NodeSet& each : sets_) {
      if (!may_win(each)) continue;
      if (best_ && is_over(request_)) {
        best_->is_best = false;
        break;
      }
      report(request_, fmt::format("a set of {} nodes", sum(each)), ++number, sets_.size());
      look_at(each);
    }
    if (best_) {
      best_->sets = sets_.size();
      best_->planned = planned_;
    }
    return std::move(best_);
  }

 private:
  static int sum(const NodeSet& set) {
    int nodes = 0;
    for (int count : set.counts) nodes += count;
    return nodes;
  }

  double aim(double seconds, double price_per_hour) const {
    return goal_.objective == Goal::Objective::kTime ? seconds : seconds / kHour * price_per_hour;
  }

  void list_sets() {
    const LeastWork least(request_);
    std::vector<int> counts(kinds_.size(), 0);
    while (next(counts)) {
      NodeSet set{counts};
      std::map<std::string, int> devices;
      for (size_t k = 0; k < kinds_.size(); ++k) {
        set.price_per_hour += counts[k] * price_of(request_, kinds_[k].pool);
        const auto in_each = static_cast<int>(kinds_[k].nodes[0].size());
        devices[request_.cluster.pools[at(kinds_[k].pool)].kind.name] += counts[k] * in_each;
      }
      const double step = static_cast<double>(least.bound(devices).value) * 1e-9;
      set.seconds = step * static_cast<double>(goal_.steps);
      sets_.push_back(std::move(set));
    }
    // Among sets with one bound, the one with the fewest nodes communicates least.
    std::stable_sort(sets_.begin(), sets_.end(), [&](const NodeSet& a, const NodeSet& b) {
      const auto key = [&](const NodeSet& each) {
        return std::tuple(aim(each.seconds, each.price_per_hour), sum(each), each.price_per_hour);
      };
      return key(a) < key(b);
    });
  }

  // Advances `counts` like digits; returns false after the last.
  bool next(std::vector<int>& counts) const {
    for (size_t k = 0; k < counts.size(); ++k) {
      if (counts[k] < static_cast<int>(kinds_[k].nodes.size())) {
        ++counts[k];
        return true;
      }
      counts[k] = 0;
    }
    return false;
  }

  bool may_win(const NodeSet& set) const {
    const double least = kSure * set.seconds;
    if (goal_.deadline && least > goal_.deadline->value) return false;
    if (goal_.budget && least / kHour * set.price_per_hour > *goal_.budget) return false;
    const double share = 1 - request_.gap.value_or(0);
    return !best_ || aim(least, set.price_per_hour) < share * best_aim_;
  }

  // Returns the longest step with which the set would be the best.
  std::optional<Nanoseconds> longest(const NodeSet& set) const {
    std::optional<double> seconds;
    const auto limit = [&](double by) { seconds = std::min(seconds.value_or(by), by); };
    if (goal_.deadline) limit(goal_.deadline->value);
    if (set.price_per_hour > 0 && goal_.budget) limit(*goal_.budget * kHour / set.price_per_hour);
    if (best_ && goal_.objective == Goal::Objective::kTime) limit(best_aim_);
    if (best_ && goal_.objective == Goal::Objective::kCost && set.price_per_hour > 0)
      limit(best_aim_ * kHour / set.price_per_hour);
    if (!seconds) return std::nullopt;
    const double step = *seconds / static_cast<double>(goal_.steps);
    if (!(step < kMostStep)) return std::nullopt;
    // A step of exactly this length is still wanted.
    return Nanoseconds{static_cast<int64_t>(kRough * step * 1e9) + 1};
  }

  void look_at(const NodeSet& set) {
    Request one = request_;
    one.devices.clear();
    for (size_t k = 0; k < kinds_.size(); ++k)
      for (int n = 0; n < set.counts[k]; ++n)
        for (const std::string& name : names_of(request_.cluster, kinds_[k].nodes[at(n)]))
          one.devices.push_back(name);
    const std::optional<Nanoseconds> limit = longest(set);
    if (limit && (!one.faster_than || *limit < *one.faster_than)) one.faster_than = limit;
    one.gap.reset();
    one.cache.outcomes = nullptr;
    ++planned_;
    why_left_out(request_, [&] {
      Outcome outcome = plan(one);
      if (auto* found = std::get_if<Plan>(&outcome)) keep(priced(std::move(*found)));
    });
  }

  GoalPlan priced(Plan plan) const {
    GoalPlan all;
    std::set<std::pair<int, int>> used;  // (pool, node)
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages)
        for (const std::string& name : stage.mesh.devices) {
          const Device& device = request_.cluster.devices[at(*find_device(request_.cluster, name))];
          used.emplace(device.pool, device.node);
        }
    std::map<int, GoalPlan::Nodes> pools;
    for (const Kind& kind : kinds_) pools[kind.pool].of += static_cast<int>(kind.nodes.size());
    for (const auto& [pool, node] : used) {
      ++pools[pool].used;
      all.price_per_hour += price_of(request_, pool);
    }
    for (auto& [pool, nodes] : pools) {
      nodes.pool = request_.cluster.pools[at(pool)].name;
      all.nodes.push_back(nodes);
    }
    const Program program = lower(request_, plan);
    const double step = static_cast<double>(simulate(program, *request_.costs).step.value) * 1e-9;
    all.time = Seconds{step * static_cast<double>(goal_.steps)};
    all.cost = all.time.value / kHour * all.price_per_hour;
    all.plan = std::move(plan);
    return all;
  }

  void keep(GoalPlan found) {
    if (goal_.deadline && found.time.value > goal_.deadline->value) return;
    if (goal_.budget && found.cost > *goal_.budget) return;
    const double aimed = aim(found.time.value, found.price_per_hour);
    const bool cost = goal_.objective == Goal::Objective::kCost;
    const double other = cost ? found.time.value : found.cost;
    if (best_ && std::pair(aimed, other) >= std::pair(best_aim_, best_other_)) return;
    best_aim_ = aimed;
    best_other_ = other;
    best_ = std::move(found);
  }

  const Goal& goal_;
  const Request& request_;
  const std::vector<Kind>& kinds_;
  std::vector<NodeSet> sets_;
  std::optional<GoalPlan> best_;
  double best_aim_ = 0, best_other_ = 0;
  size_t planned_ = 0;
};

// Reports the best results without the limits.
std::string near_misses(const Goal& goal, const Request& request, const std::vector<Kind>& kinds) {
  std::string text;
  const auto say = [&](const std::string& wanted, const char* what, Goal::Objective objective) {
    const Goal open{.objective = objective, .steps = goal.steps};
    const std::optional<GoalPlan> found = GoalSearch(open, request, kinds).best();
    if (!found) return false;
    text += fmt::format("{}no plan makes {} steps {}: the {} found takes {} and costs {:.4g}",
                        text.empty() ? "" : "; ",
                        goal.steps,
                        wanted,
                        what,
                        run_time_text(found->time),
                        found->cost);
    return true;
  };
  std::string limits;
  if (goal.deadline) limits += "by " + run_time_text(*goal.deadline);
  if (goal.budget) limits += fmt::format("{}for {:g}", goal.deadline ? " and " : "", *goal.budget);
  bool any = false;
  if (goal.deadline) any |= say(limits, "fastest", Goal::Objective::kTime);
  if (goal.budget) any |= say(limits, "cheapest", Goal::Objective::kCost);
  return any ? text : "";
}

}  // namespace

std::string run_time_text(Seconds time) {
  if (time.value < 60) return to_string(time);
  if (time.value < kHour) return fmt::format("{:.1f} min", time.value / 60);
  return fmt::format("{:.1f} h", time.value / kHour);
}

GoalOutcome plan_for(const Goal& goal, const Request& request) {
  if (!request.costs) {
    const CostModel analytic(request.cluster);
    Request priced = request;
    priced.costs = &analytic;
    return plan_for(goal, priced);
  }
  if (!request.cache.analysis) {
    const GraphAnalysis analysis = analyse(request.graph, request.optimizer);
    Request analysed = request;
    analysed.cache.analysis = &analysis;
    return plan_for(goal, analysed);
  }
  check(request);
  const std::vector<Kind> kinds = kinds_of(request);
  check_goal(goal, kinds, request);
  if (std::optional<GoalPlan> found = GoalSearch(goal, request, kinds).best())
    return std::move(*found);
  if (std::string said = near_misses(goal, request, kinds); !said.empty()) return Infeasible{said};
  Outcome outcome = plan(request);
  if (auto* no = std::get_if<Infeasible>(&outcome)) return std::move(*no);
  return Infeasible{"no set of nodes has a plan"};
}

}  // namespace medley
