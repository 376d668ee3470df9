#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "medley/base/error.h"
#include "medley/cli/additions.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/progress.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/cluster/prices.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

struct PlanArguments {
  RequestOptions request;
  std::string strategy = "auto";
  std::string output;
  std::string gap, time_limit;
  int64_t tolerate_node_loss = 0;
  std::string loss_over = "batch";
  std::vector<std::function<std::optional<PlanSearch>()>> searches;  // additions, in order
};

// Returns "2%" as 0.02, or nothing if it is not given.
std::optional<double> read_share(const std::string& text) {
  if (text.empty()) return std::nullopt;
  double percent = -1;
  const char* end = text.data() + text.size() - 1;
  const auto [read, error] = std::from_chars(text.data(), end, percent);
  if (*end != '%' || read != end || error != std::errc() || !(percent >= 0 && percent < 100))
    throw Error(Blame::kCaller,
                fmt::format("--gap: found \"{}\", expected a share such as \"2%\"", text));
  return percent / 100;
}

// Returns true once the time has passed; null if no time is given.
std::function<bool()> read_time(const std::string& text, Clock& clock) {
  const std::optional<double> seconds = read_duration("--time-limit", text);
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

// Returns the commands for a plan, which is in the file `output` or nowhere.
std::string next_of_plan(const RequestOptions& asked, const std::string& output) {
  if (output.empty()) return "Next: the same command with -o plan.json, which writes the plan\n";
  const PlannedOptions planned{asked.graph, asked.cluster, output, asked.layers};
  std::vector<std::vector<std::string>> commands{report_command(planned, asked.profile)};
  if (asked.layers.empty()) commands.push_back({"medley", "launch", output, "train.py"});
  return next_text(commands);
}

std::string no_plan(const RequestOptions& asked, const std::string& why) {
  return fmt::format("{} on {}: {}", asked.graph, asked.cluster, why);
}

// The search that options require, and the name of its addition.
struct Asked {
  std::string_view name;
  std::optional<PlanSearch> search;
};

Asked asked_search(const PlanArguments& options, const Additions& additions) {
  for (size_t i = 0; i < options.searches.size(); ++i)
    if (std::optional<PlanSearch> search = options.searches[i]())
      return {additions.plan[i].name, std::move(search)};
  return {};
}

// Returns the plan, and the search's report on it.
PlanSearch::Found find(const Request& request, const Asked& by, const RequestOptions& asked) {
  if (by.search) {
    std::variant<PlanSearch::Found, Infeasible> outcome = by.search->find(request);
    if (const auto* no = std::get_if<Infeasible>(&outcome))
      throw Error(Blame::kCaller, no_plan(asked, to_string(*no)));
    return std::get<PlanSearch::Found>(std::move(outcome));
  }
  Outcome outcome = plan(request);
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(Blame::kCaller, no_plan(asked, "no plan fits: " + to_string(*no)));
  return {std::get<Plan>(std::move(outcome)), {}, ""};
}

void run_plan(const PlanArguments& options, Session& session) {
  const RequestOptions& asked = options.request;
  SteadyClock clock;
  const std::optional<double> gap = read_share(options.gap);
  const std::function<bool()> is_over = read_time(options.time_limit, clock);
  const Asked by = asked_search(options, session.additions);
  const Graph graph = read_graph(session.files, asked.graph);
  const Cluster cluster =
      by.search && by.search->needs_prices
          ? parse_priced_cluster(read_input(session.files, asked.cluster, "a cluster"),
                                 asked.cluster,
                                 read_catalogue(session.catalogue))
          : read_cluster(session.files, asked.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, asked.profile, cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Progress progress(session.terminal, clock);
  std::string left_out;
  const PlanSearch::Found found =
      find({.graph = graph,
            .cluster = cluster,
            .costs = &costs,
            .strategy = options.strategy,
            .global_batch = asked.global_batch,
            .microbatches = asked.microbatches,
            .devices = asked.devices,
            .optimizer = {},
            .tolerate_node_loss = static_cast<int>(options.tolerate_node_loss),
            .loss_over_microbatches = options.loss_over == kLossOver[1],
            .gap = gap,
            .cache = {.analysis = &analysis},
            .listener = {.progress = std::bind_front(&Progress::at, &progress),
                         .left_out =
                             [&](const std::string& why) {
                               left_out += fmt::format(
                                   "left out a candidate that cannot be lowered: {}\n", why);
                             },
                         .is_over = is_over}},
           by,
           asked);
  if (options.output.empty() && session.json) {
    session.out << print(found.plan);
    return;
  }
  if (!options.output.empty()) write_atomically(session.files, options.output, print(found.plan));
  const ExplainOptions about{.graph = &graph, .costs = &costs, .analysis = &analysis};
  if (session.json) {
    nlohmann::ordered_json said = explain_json(found.plan, about);
    if (by.search) said[std::string(by.name)] = found.json;
    session.out << said.dump(2) + "\n";
    return;
  }
  session.out << explain(found.plan, about) +
                     wrapped(gap_text(found.plan) + left_out + found.text) +
                     next_of_plan(asked, options.output);
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
  arguments.text("--gap",
                 options->gap,
                 "Stop once no plan can be shorter by more: 2%",
                 {.excludes = {"--layers"}});
  arguments.number("--tolerate-node-loss",
                   options->tolerate_node_loss,
                   "Nodes that may be lost with the state of the run still there, 0 or 1: plans "
                   "that need copies for that count what these cost",
                   {.excludes = {"--layers"}, .least = 0, .most = 1});
  arguments.text("--loss-over",
                 options->loss_over,
                 "What the loss of a step is over: batch; microbatches, the mean of their losses, "
                 "as where PyTorch accumulates gradients (needs --microbatches)",
                 {.excludes = {"--layers"}, .one_of = {"batch", "microbatches"}});
  arguments.text("--time-limit",
                 options->time_limit,
                 "Stop with the best plan found after so long: 10s",
                 {.excludes = {"--layers"}});
  for (const PlanAddition& addition : session.additions.plan)
    options->searches.push_back(addition.prepare(arguments));
  return [options, &session] {
    if (!without_graph(options->request)) return run_plan(*options, session);
    plan_measured(options->request, options->output, session);
    if (!session.json) session.out << next_of_plan(options->request, options->output);
  };
}

}  // namespace medley
