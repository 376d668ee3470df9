#include "medley/goal/goal_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <utility>

#include "medley/base/error.h"
#include "medley/cli/options.h"
#include "medley/goal/goal.h"

namespace medley {
namespace {

struct GoalArguments {
  std::string objective, deadline, budget;
  int64_t steps = 0;
};

std::optional<double> read_money(const std::string& text) {
  if (text.empty()) return std::nullopt;
  double money = 0;
  const char* end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, money);
  if (error != std::errc() || read != end || !std::isfinite(money) || !(money > 0))
    throw Error(Blame::kCaller,
                fmt::format("--budget: found \"{}\", expected an amount of money such as 250, in "
                            "the currency of the cluster's prices",
                            text));
  return money;
}

// Returns nullopt without an objective.
std::optional<Goal> read_goal(const GoalArguments& options) {
  if (options.objective.empty()) return std::nullopt;
  if (options.steps == 0)
    throw Error(Blame::kCaller, "--objective: expected --steps, of the whole run, beside it");
  Goal goal;
  goal.objective = options.objective == "cost" ? Goal::Objective::kCost : Goal::Objective::kTime;
  goal.steps = options.steps;
  if (const auto seconds = read_duration("--deadline", options.deadline))
    goal.deadline = Seconds{*seconds};
  goal.budget = read_money(options.budget);
  return goal;
}

bool is_about_money(const Goal& goal) {
  return goal.budget || goal.objective == Goal::Objective::kCost;
}

std::string goal_text(const GoalPlan& found, int64_t steps) {
  std::string nodes;
  for (const GoalPlan::Nodes& each : found.nodes)
    nodes += fmt::format("{}{} of {} {}", nodes.empty() ? "" : ", ", each.used, each.of, each.pool);
  return fmt::format(
      "{} steps: {}, {:.4g} at {:.4g} an hour; nodes: {}\n"
      "Planned: {} of {} sets of nodes, {}\n",
      steps,
      run_time_text(found.time),
      found.cost,
      found.price_per_hour,
      nodes,
      found.planned,
      found.sets,
      found.is_best ? "no other can be better" : "then the time was over");
}

nlohmann::ordered_json goal_json(const GoalPlan& found, int64_t steps) {
  nlohmann::ordered_json nodes;
  for (const GoalPlan::Nodes& each : found.nodes) nodes[each.pool] = each.used;
  return {{"steps", steps},
          {"seconds", found.time.value},
          {"cost", found.cost},
          {"price_per_hour", found.price_per_hour},
          {"nodes", nodes},
          {"is_best", found.is_best},
          {"sets_planned", found.planned},
          {"sets", found.sets}};
}

std::variant<PlanSearch::Found, Infeasible> find(const Goal& goal, const Request& request) {
  GoalOutcome outcome = plan_for(goal, request);
  if (auto* no = std::get_if<Infeasible>(&outcome)) return std::move(*no);
  auto& found = std::get<GoalPlan>(outcome);
  return PlanSearch::Found{
      std::move(found.plan), goal_json(found, goal.steps), goal_text(found, goal.steps)};
}

std::optional<PlanSearch> search_for(const GoalArguments& options) {
  const std::optional<Goal> goal = read_goal(options);
  if (!goal) return std::nullopt;
  return PlanSearch{
      is_about_money(*goal),
      [goal = *goal](const Request& request) { return find(goal, request); },
  };
}

}  // namespace

std::function<std::optional<PlanSearch>()> prepare_goal(Arguments& arguments) {
  auto options = std::make_shared<GoalArguments>();
  arguments.text("--objective",
                 options->objective,
                 "Which nodes to rent: cost, the cheapest that end in time; time, the fastest",
                 {.excludes = {"--layers", "--tolerate-node-loss"}, .one_of = {"cost", "time"}});
  arguments.number("--steps",
                   options->steps,
                   "With --objective: of the whole run",
                   {.needs = {"--objective"}, .least = 1});
  arguments.text("--deadline",
                 options->deadline,
                 "With --objective: how long all steps may take: 36h",
                 {.needs = {"--objective"}});
  arguments.text("--budget",
                 options->budget,
                 "With --objective: what all steps may cost, in the currency of the prices",
                 {.needs = {"--objective"}});
  return [options] { return search_for(*options); };
}

}  // namespace medley
