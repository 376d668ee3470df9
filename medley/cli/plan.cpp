#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/progress.h"
#include "medley/cli/verbs.h"
#include "medley/cluster/quantity.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

struct PlanArguments {
  RequestOptions request;
  std::string strategy = "auto";
  std::string output;
  std::string within, time;
  int64_t survive = 0;
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

// True once so long has passed; null if no time is given.
std::function<bool()> read_time(const std::string& text, Clock& clock) {
  if (text.empty()) return nullptr;
  const std::optional<double> seconds = parse_quantity(text, Dimension::kDuration);
  if (!seconds || !(*seconds > 0))
    throw Error(
        Blame::kCaller,
        fmt::format(
            "--time: found \"{}\", expected {}", text, expected_quantity(Dimension::kDuration)));
  const Nanoseconds end = clock.now() + to_nanoseconds(Seconds{*seconds});
  return [&clock, end] { return clock.now() >= end; };
}

std::string gap_text(const Plan& plan) {
  if (!plan.bound) return "";
  return fmt::format("no plan that was searched is more than {:.1f} % shorter than its {}\n",
                     100 * plan.bound->gap(),
                     to_string(Nanoseconds{plan.bound->step_ns}));
}

void run_plan(const PlanArguments& options, Session& session) {
  const RequestOptions& asked = options.request;
  SteadyClock clock;
  const std::optional<double> within = read_share(options.within);
  const std::function<bool()> is_over = read_time(options.time, clock);
  const Graph graph = read_graph(session.files, asked.graph);
  const Cluster cluster = read_cluster(session.files, asked.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, asked.profile, cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Progress progress(session.terminal, clock);
  const Outcome outcome = plan({.graph = graph,
                                .cluster = cluster,
                                .costs = &costs,
                                .strategy = options.strategy,
                                .global_batch = asked.global_batch,
                                .microbatches = asked.microbatches,
                                .devices = asked.devices,
                                .optimizer = {},
                                .survive = static_cast<int>(options.survive),
                                .within = within,
                                .is_over = is_over,
                                .analysis = &analysis,
                                .progress = [&](std::string_view what, size_t number, size_t of) {
                                  progress.at(what, number, of);
                                }});
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(Blame::kCaller,
                fmt::format("{} on {}: no plan fits: {}", asked.graph, asked.cluster, no->reason));
  const Plan& found = std::get<Plan>(outcome);
  if (options.output.empty()) {
    session.out << print(found);
    return;
  }
  write_atomically(session.files, options.output, print(found));
  const ExplainOptions about{.graph = &graph, .costs = &costs, .analysis = &analysis};
  session.out << (session.json ? explain_json(found, about).dump(2) + "\n"
                               : explain(found, about) + gap_text(found));
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
                 "Write the plan here and explain it; without, the plan is printed");
  arguments.text("--within",
                 options->within,
                 "Stop once no plan can be shorter by more: 2%",
                 {.excludes = {"--layers"}});
  arguments.number("--survive",
                   options->survive,
                   "Nodes that may be lost with the state of the run still there, 0 or 1: plans "
                   "that need copies for that count what these cost",
                   {.least = 0, .most = 1, .excludes = {"--layers"}});
  arguments.text("--time",
                 options->time,
                 "Stop with the best plan found after so long: 10s",
                 {.excludes = {"--layers"}});
  return [options, &session] {
    if (without_graph(options->request))
      plan_measured(options->request, options->output, session);
    else
      run_plan(*options, session);
  };
}

}  // namespace medley
