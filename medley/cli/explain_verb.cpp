#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "medley/base/error.h"
#include "medley/cli/explain.h"
#include "medley/cli/explain_layers.h"
#include "medley/cli/inputs.h"
#include "medley/cli/verbs.h"

namespace medley {
namespace {

struct Options {
  std::string plan, layers, graph, cluster;
  bool expanded = false;
};

void run(const Options& options, Session& session) {
  if (!options.layers.empty()) {
    const nlohmann::ordered_json layers = layers_json(read_graph(session.files, options.layers));
    session.out << (session.json ? layers.dump(2) + "\n" : layers_text(layers));
    return;
  }
  if (options.plan.empty()) throw Error(Blame::kCaller, "found no plan, expected one or --layers");
  const Plan plan = read_plan(session.files, options.plan);
  std::optional<Graph> graph;
  std::optional<Cluster> cluster;
  if (!options.graph.empty()) graph = read_graph(session.files, options.graph);
  if (!options.cluster.empty())
    cluster = read_cluster(session.files, options.cluster, session.catalogue);
  if (graph && cluster) verify_plan(plan, options.plan, *graph, *cluster);
  const ExplainOptions about{
      graph ? &*graph : nullptr, cluster ? &*cluster : nullptr, options.expanded};
  session.out << (session.json ? explain_json(plan, about).dump(2) + "\n" : explain(plan, about));
}

}  // namespace

std::function<void()> prepare_explain(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  auto* plan = app.add_option("plan", options->plan, "The plan (plan.json)");
  app.add_option("--layers", options->layers, "Of a graph: where a pipeline may cut it; no plan")
      ->excludes(plan);
  auto* graph = app.add_option("--graph", options->graph, "The graph that it is for");
  auto* cluster = app.add_option(
      "--cluster", options->cluster, "The cluster that it is for: adds memory and times");
  app.add_flag("--expanded", options->expanded, "Every input, op and communication")
      ->needs(graph)
      ->needs(cluster);
  return [options, &session] { run(*options, session); };
}

}  // namespace medley
