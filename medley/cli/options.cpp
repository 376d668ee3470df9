#include "medley/cli/options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "medley/base/error.h"
#include "medley/plan/plan.h"

namespace medley {
namespace {

void add_graph_and_cluster(CLI::App& app, std::string& graph, std::string& cluster) {
  app.add_option("graph", graph, "The captured model (g.graph)")->required();
  app.add_option("cluster", cluster, "The devices (cluster.yaml)")->required();
}

void refuse_both(const std::string& extra, const std::string& layers) {
  if (!extra.empty())
    throw Error(Blame::kCaller, "found a graph and --layers " + layers + ", expected one of them");
}

}  // namespace

void add_layers_option(CLI::App& app, std::string& layers, const std::string& last) {
  app.add_option_function<std::string>(
         "--layers",
         [&app, &layers, last](const std::string& value) {
           layers = value;
           app.get_option(last)->required(false);
         },
         "Measured layers (table.json) in place of the graph")
      ->trigger_on_parse();
}

bool without_graph(RequestOptions& options) {
  if (options.layers.empty()) return false;
  refuse_both(options.cluster, options.layers);
  options.cluster = std::exchange(options.graph, "");
  return true;
}

bool without_graph(PlannedOptions& options) {
  if (options.layers.empty()) return false;
  refuse_both(options.plan, options.layers);
  options.plan = std::exchange(options.cluster, std::exchange(options.graph, ""));
  return true;
}

void add_request_options(CLI::App& app, RequestOptions& options) {
  add_graph_and_cluster(app, options.graph, options.cluster);
  app.add_option("--global-batch", options.global_batch, "Rows of a step over all devices")
      ->required();
  add_layers_option(app, options.layers, "cluster");
  add_profile_option(app, options.profile);
  app.add_option(
         "--microbatches", options.microbatches, "How many; as few as fit into memory if not given")
      ->check(CLI::Range(int64_t{1}, kMaxLength));
  app.add_option("--devices", options.devices, "Use these only: fast/0/0,slow/0/1")->delimiter(',');
  for (const char* of_graphs : {"--profile", "--devices"})
    app.get_option(of_graphs)->excludes("--layers");
}

void add_planned_options(CLI::App& app, PlannedOptions& options) {
  add_graph_and_cluster(app, options.graph, options.cluster);
  app.add_option("plan", options.plan, "The plan (plan.json)")->required();
}

void add_profile_option(CLI::App& app, std::string& profile) {
  app.add_option("--profile", profile, "Measured times (profile.json)");
}

}  // namespace medley
