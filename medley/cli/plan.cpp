#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/progress.h"
#include "medley/cli/verbs.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

struct PlanArguments {
  RequestOptions request;
  std::string strategy = "auto";
  std::string output;
};

void run_plan(const PlanArguments& options, Session& session) {
  const RequestOptions& asked = options.request;
  const Graph graph = read_graph(session.files, asked.graph);
  const Cluster cluster = read_cluster(session.files, asked.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, asked.profile, cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  SteadyClock clock;
  Progress progress(session.terminal, clock);
  const Outcome outcome = plan({.graph = graph,
                                .cluster = cluster,
                                .costs = &costs,
                                .strategy = options.strategy,
                                .global_batch = asked.global_batch,
                                .microbatches = asked.microbatches,
                                .devices = asked.devices,
                                .optimizer = {},
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
  session.out << (session.json ? explain_json(found, about).dump(2) + "\n" : explain(found, about));
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
  return [options, &session] {
    if (without_graph(options->request))
      plan_measured(options->request, options->output, session);
    else
      run_plan(*options, session);
  };
}

}  // namespace medley
