#include "medley/cli/options.h"

#include <CLI/CLI.hpp>

#include "medley/plan/plan.h"

namespace medley {
namespace {

void add_graph_and_cluster(CLI::App& app, std::string& graph, std::string& cluster) {
  app.add_option("graph", graph, "The captured model (g.graph)")->required();
  app.add_option("cluster", cluster, "The devices (cluster.yaml)")->required();
}

}  // namespace

void add_request_options(CLI::App& app, RequestOptions& options) {
  add_graph_and_cluster(app, options.graph, options.cluster);
  app.add_option("--global-batch", options.global_batch, "Rows of a step over all devices")
      ->required();
  add_profile_option(app, options.profile);
  app.add_option(
         "--microbatches", options.microbatches, "How many; as few as fit into memory if not given")
      ->check(CLI::Range(int64_t{1}, kMaxLength));
  app.add_option("--devices", options.devices, "Use these only: fast/0/0,slow/0/1")->delimiter(',');
}

void add_planned_options(CLI::App& app, PlannedOptions& options) {
  add_graph_and_cluster(app, options.graph, options.cluster);
  app.add_option("plan", options.plan, "The plan (plan.json)")->required();
}

void add_profile_option(CLI::App& app, std::string& profile) {
  app.add_option("--profile", profile, "Measured times (profile.json)");
}

}  // namespace medley
