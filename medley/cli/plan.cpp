#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/progress.h"
#include "medley/cli/verbs.h"
#include "medley/cluster/prices.h"
#include "medley/cluster/quantity.h"
#include "medley/planner/goal.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

struct PlanArguments {
  RequestOptions request;
  std::string strategy = "auto";
  std::string output;
  std::string within, time;
  std::string objective, by, budget;
  int64_t steps = 0;
  int64_t survive = 0;
  std::string loss_over = "batch";
};

// "2%" as 0.02; nothing if it is not given.
std::optional<double> read_share(const std::string& text) {
  if (text.empty()) return std::nullopt;
  double percent = -1;
  const char* end = text.data() + text.size() - 1;
  const auto [read, error] = std::from_chars(text.data(), end, percent);
  if (*end != '%' || read != end || error != std::errc() || !(percent >= 0 && percent < 100))
    throw Error(Blame::kCaller,
                fmt::format("--within: found \"{}\", expected a share such as \"2%\"", text));
  return percent / 100;
}

std::optional<double> read_duration(const std::string& option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const std::optional<double> seconds = parse_quantity(text, Dimension::kDuration);
  if (!seconds || !(*seconds > 0))
    throw Error(
        Blame::kCaller,
        fmt::format(
            "{}: found \"{}\", expected a duration such as \"10 s\", \"90 min\" or \"36 h\"",
            option,
            text));
  return seconds;
}

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

// Nothing if no objective is given.
std::optional<Goal> read_goal(const PlanArguments& options) {
  if (options.objective.empty()) return std::nullopt;
  if (options.steps == 0)
    throw Error(Blame::kCaller, "--objective: expected --steps, of the whole run, beside it");
  Goal goal;
  goal.objective = options.objective == "cost" ? Goal::Objective::kCost : Goal::Objective::kTime;
  goal.steps = options.steps;
  if (const auto seconds = read_duration("--by", options.by)) goal.by = Seconds{*seconds};
  goal.budget = read_money(options.budget);
  return goal;
}

bool is_about_money(const Goal& goal) {
  return goal.budget || goal.objective == Goal::Objective::kCost;
}

// True once so long has passed; null if no time is given.
std::function<bool()> read_time(const std::string& text, Clock& clock) {
  const std::optional<double> seconds = read_duration("--time", text);
  if (!seconds) return nullptr;
  const Nanoseconds end = clock.now() + to_nanoseconds(Seconds{*seconds});
  return [&clock, end] { return clock.now() >= end; };
}

std::string gap_text(const Plan& plan) {
  if (!plan.bound) return "";
  const std::string step = to_string(Nanoseconds{plan.bound->step_ns});
  const std::string gap = fmt::format("{:.1f}", 100 * plan.bound->gap());
  if (gap == "0.0") return fmt::format("no plan that was searched is shorter than its {}\n", step);
  return fmt::format(
      "no plan that was searched is more than {} % shorter than its {}\n", gap, step);
}

std::string goal_text(const GoalPlan& found, int64_t steps) {
  std::string nodes;
  for (const GoalPlan::Nodes& each : found.nodes)
    nodes += fmt::format("{}{} of {} {}", nodes.empty() ? "" : ", ", each.used, each.of, each.pool);
  return fmt::format(
      "{} steps: {}, {:.4g} at {:.4g} an hour; nodes: {}. Planned: {} of {} sets of nodes, {}.\n",
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

std::string no_plan(const RequestOptions& asked, const std::string& reason) {
  return fmt::format("{} on {}: {}", asked.graph, asked.cluster, reason);
}

// The plan, and what it comes to if there is a goal.
std::pair<Plan, std::optional<GoalPlan>> find(const Request& request,
                                              const std::optional<Goal>& goal,
                                              const RequestOptions& asked) {
  if (!goal) {
    Outcome outcome = plan(request);
    if (const auto* no = std::get_if<Infeasible>(&outcome))
      throw Error(Blame::kCaller, no_plan(asked, "no plan fits: " + no->reason));
    return {std::get<Plan>(std::move(outcome)), std::nullopt};
  }
  GoalOutcome outcome = plan_for(*goal, request);
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(Blame::kCaller, no_plan(asked, no->reason));
  auto& found = std::get<GoalPlan>(outcome);
  Plan plan = found.plan;
  return {std::move(plan), std::move(found)};
}

void run_plan(const PlanArguments& options, Session& session) {
  const RequestOptions& asked = options.request;
  SteadyClock clock;
  const std::optional<double> within = read_share(options.within);
  const std::function<bool()> is_over = read_time(options.time, clock);
  const std::optional<Goal> goal = read_goal(options);
  const Graph graph = read_graph(session.files, asked.graph);
  const Cluster cluster =
      goal && is_about_money(*goal)
          ? parse_priced_cluster(read_input(session.files, asked.cluster, "a cluster"),
                                 asked.cluster,
                                 read_catalogue(session.catalogue))
          : read_cluster(session.files, asked.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, asked.profile, cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Progress progress(session.terminal, clock);
  std::string left_out;
  const auto [found, reached] = find(
      {.graph = graph,
       .cluster = cluster,
       .costs = &costs,
       .strategy = options.strategy,
       .global_batch = asked.global_batch,
       .microbatches = asked.microbatches,
       .devices = asked.devices,
       .optimizer = {},
       .survive = static_cast<int>(options.survive),
       .loss_over_microbatches = options.loss_over == kLossOver[1],
       .within = within,
       .is_over = is_over,
       .analysis = &analysis,
       .progress =
           [&](std::string_view what, size_t number, size_t of) { progress.at(what, number, of); },
       .left_out =
           [&](const std::string& why) {
             left_out += fmt::format("left out a candidate that cannot be lowered: {}\n", why);
           }},
      goal,
      asked);
  if (options.output.empty() && session.json) {
    session.out << print(found);
    return;
  }
  if (!options.output.empty()) write_atomically(session.files, options.output, print(found));
  const ExplainOptions about{.graph = &graph, .costs = &costs, .analysis = &analysis};
  if (session.json) {
    nlohmann::ordered_json said = explain_json(found, about);
    if (reached) said["goal"] = goal_json(*reached, goal->steps);
    session.out << said.dump(2) + "\n";
    return;
  }
  session.out << explain(found, about) + gap_text(found) + left_out;
  if (reached) session.out << goal_text(*reached, goal->steps);
}

}  // namespace

std::function<void()> prepare_plan(Arguments& arguments, Session& session) {
  auto options = std::make_shared<PlanArguments>();
  add_request_options(arguments, options->request);
  arguments.text("--strategy",
                 options->strategy,
                 "One of `medley list strategies`; auto",
                 {.excludes = {"--layers"}});
  arguments.text("-o,--output",
                 options->output,
                 "Write the plan here; --json prints it where there is no file");
  arguments.text("--within",
                 options->within,
                 "Stop once no plan can be shorter by more: 2%",
                 {.excludes = {"--layers"}});
  arguments.number("--survive",
                   options->survive,
                   "Nodes that may be lost with the state of the run still there, 0 or 1: plans "
                   "that need copies for that count what these cost",
                   {.excludes = {"--layers"}, .least = 0, .most = 1});
  arguments.text("--loss-over",
                 options->loss_over,
                 "What the loss of a step is over: batch; microbatches, the mean of their losses, "
                 "as where PyTorch accumulates gradients (needs --microbatches)",
                 {.excludes = {"--layers"}, .one_of = {"batch", "microbatches"}});
  arguments.text("--time",
                 options->time,
                 "Stop with the best plan found after so long: 10s",
                 {.excludes = {"--layers"}});
  arguments.text("--objective",
                 options->objective,
                 "Which nodes to rent: cost, the cheapest that end in time; time, the fastest",
                 {.excludes = {"--layers", "--survive"}, .one_of = {"cost", "time"}});
  arguments.number("--steps",
                   options->steps,
                   "With --objective: of the whole run",
                   {.needs = {"--objective"}, .least = 1});
  arguments.text("--by",
                 options->by,
                 "With --objective: how long all steps may take: 36h",
                 {.needs = {"--objective"}});
  arguments.text("--budget",
                 options->budget,
                 "With --objective: what all steps may cost, in the currency of the prices",
                 {.needs = {"--objective"}});
  return [options, &session] {
    if (without_graph(options->request))
      plan_measured(options->request, options->output, session);
    else
      run_plan(*options, session);
  };
}

}  // namespace medley
