#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "medley/base/error.h"
#include "medley/cli/additions.h"
#include "medley/cli/explain.h"
#include "medley/cli/inputs.h"
#include "medley/cli/measured.h"
#include "medley/cli/options.h"
#include "medley/cli/table.h"
#include "medley/cli/verbs.h"
#include "medley/lower/lower.h"
#include "medley/measured_layers/layer_plan.h"

namespace medley {
namespace {

struct ExplainArguments {
  std::string plan, layers, graph, cluster, profile;
  bool expanded = false;
};

// Rows of each addition, in their order.
using Added = std::vector<nlohmann::ordered_json>;

Added find_added(const Plan& plan,
                 const GraphAnalysis& analysis,
                 const CostModel& costs,
                 Session& session) {
  const Request request{.graph = analysis.graph,
                        .cluster = costs.cluster(),
                        .costs = &costs,
                        .strategy = plan.strategy,
                        .global_batch = plan.global_batch,
                        .devices = {},
                        .optimizer = {},
                        .cache = {.analysis = &analysis}};
  SteadyClock clock;
  Progress progress(session.terminal, clock);
  Added added;
  for (const ExplainAddition& addition : session.additions.explain)
    added.push_back(addition.find(request, plan, progress));
  return added;
}

// Returns the command that shows more of a plan; "" if all is shown.
std::string next_of_explain(const ExplainArguments& options) {
  if (options.expanded) return "";
  const std::string graph = options.graph.empty() ? "g.graph" : options.graph;
  const std::string cluster = options.cluster.empty() ? "cluster.yaml" : options.cluster;
  std::vector<std::string> words{"medley", "explain", options.plan, "--graph", graph};
  words.insert(words.end(), {"--cluster", cluster});
  if (!options.graph.empty() && !options.cluster.empty()) words.emplace_back("--expanded");
  return next_text({words});
}

void run_explain(const ExplainArguments& options, Session& session) {
  if (!options.plan.empty() && is_layer_plan(read_input(session.files, options.plan, "a plan"))) {
    explain_measured(options.plan, options.layers, options.cluster, session);
    return;
  }
  if (!options.plan.empty() && !options.layers.empty())
    throw Error(Blame::kCaller, options.plan + ": found a plan for a graph, expected no --layers");
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
  std::optional<CostModel> costs;
  if (cluster) costs.emplace(read_costs(session.files, options.profile, *cluster));
  if (graph && cluster) verify_plan(plan, options.plan, *graph, *cluster);
  std::optional<GraphAnalysis> analysis;
  if (graph && costs) analysis.emplace(analyse(*graph, plan, *cluster, {}));
  const ExplainOptions about{.graph = graph ? &*graph : nullptr,
                             .costs = costs ? &*costs : nullptr,
                             .expanded = options.expanded,
                             .analysis = analysis ? &*analysis : nullptr};
  Added added;
  if (analysis && !options.expanded) added = find_added(plan, *analysis, *costs, session);
  const std::vector<ExplainAddition>& additions = session.additions.explain;
  if (!session.json) {
    session.out << explain(plan, about);
    for (size_t i = 0; i < added.size(); ++i)
      if (!added[i].empty()) session.out << "\n" << additions[i].text(added[i]);
    session.out << next_of_explain(options);
    return;
  }
  nlohmann::ordered_json json = explain_json(plan, about);
  for (size_t i = 0; i < added.size(); ++i)
    if (!added[i].empty()) json[std::string(additions[i].name)] = std::move(added[i]);
  session.out << json.dump(2) << "\n";
}

}  // namespace

std::function<void()> prepare_explain(Arguments& arguments, Session& session) {
  auto options = std::make_shared<ExplainArguments>();
  arguments.text("plan", options->plan, "The plan (plan.json)");
  arguments.text("--layers",
                 options->layers,
                 "Of a graph, without a plan: where a pipeline may cut it; of measured layers: the "
                 "table that the plan is for");
  arguments.text("--graph", options->graph, "The graph that it is for");
  arguments.text(
      "--cluster", options->cluster, "The cluster that it is for: adds memory and times");
  add_profile_option(arguments, options->profile, {.needs = {"--graph", "--cluster"}});
  arguments.flag("--expanded",
                 options->expanded,
                 "Every input, op and communication",
                 {.needs = {"--graph", "--cluster"}});
  return [options, &session] { run_explain(*options, session); };
}

}  // namespace medley
