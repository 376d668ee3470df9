#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/verbs.h"
#include "medley/planner/planner.h"

namespace medley {
namespace {

struct Options {
  std::string graph, cluster, output, profile;
  std::string strategy = "auto";
  int64_t global_batch = 0, microbatches = 0;
  std::vector<std::string> devices;
};

void run(const Options& options, Session& session) {
  const Graph graph = read_graph(session.files, options.graph);
  const Cluster cluster = read_cluster(session.files, options.cluster, session.catalogue);
  const CostModel costs = read_costs(session.files, options.profile, cluster);
  const Outcome outcome = plan({.graph = graph,
                                .cluster = cluster,
                                .costs = &costs,
                                .strategy = options.strategy,
                                .global_batch = options.global_batch,
                                .microbatches = options.microbatches,
                                .devices = options.devices,
                                .optimizer = {}});
  if (const auto* no = std::get_if<Infeasible>(&outcome))
    throw Error(
        Blame::kCaller,
        fmt::format("{} on {}: no plan fits: {}", options.graph, options.cluster, no->reason));
  const Plan& found = std::get<Plan>(outcome);
  if (options.output.empty()) {
    session.out << print(found);
    return;
  }
  write_atomically(session.files, options.output, print(found));
  const ExplainOptions about{.graph = &graph, .cluster = &cluster};
  session.out << (session.json ? explain_json(found, about).dump(2) + "\n" : explain(found, about));
}

}  // namespace

std::function<void()> prepare_plan(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  app.add_option("graph", options->graph, "The captured model (g.graph)")->required();
  app.add_option("cluster", options->cluster, "The devices (cluster.yaml)")->required();
  app.add_option("--strategy", options->strategy, "One of `medley list strategies`; auto");
  app.add_option("--global-batch", options->global_batch, "Rows of a step over all devices")
      ->required();
  app.add_option("--profile", options->profile, "Measured times (profile.json)");
  app.add_option("--microbatches",
                 options->microbatches,
                 "How many; as few as fit into memory if not given")
      ->check(CLI::Range(int64_t{1}, kMaxLength));
  app.add_option("--devices", options->devices, "Use these only: fast/0/0,slow/0/1")
      ->delimiter(',');
  app.add_option("-o,--output",
                 options->output,
                 "Write the plan here and explain it; without, the plan is printed");
  return [options, &session] { run(*options, session); };
}

}  // namespace medley
