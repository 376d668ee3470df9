#include "medley/candidates/fine_cuts.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

// Returns devices of two types, `of_each` per type, one `faster` times as fast.
Cluster unlike_devices(double faster, int of_each = 1) {
  const auto kind = [](const char* name, double speed) {
    return DeviceKind{name, {}, {{DType::kF32, 1e10 * speed}}, 1e10, 1e13, 1e-8};
  };
  Cluster cluster;
  cluster.pools = {{"a", of_each, 1, kind("slow", 1), false, 0},
                   {"b", of_each, 1, kind("fast", faster), false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a", "b"}, 1e10, 1e-6, {}}};
  return cluster;
}

Graph gpt() {
  return run_passes(parse_graph(LocalFiles().read("python/tests/golden/gpt.graph"), "gpt.graph"));
}

Request asked(const Graph& graph,
              const CostModel& costs,
              const GraphAnalysis& analysis,
              int64_t rows) {
  return {.graph = graph,
          .cluster = costs.cluster(),
          .costs = &costs,
          .strategy = "harp",
          .global_batch = rows,
          .devices = {},
          .optimizer = {},
          .cache = {.analysis = &analysis}};
}

// Two blocks have six layers, five cuts. If finer cuts win, they beat all of these.
TEST(FineCuts, AreFasterThanAllCutsBetweenLayers) {
  const Graph graph = gpt();
  const GraphAnalysis analysis = analyse(graph, {});
  int faster = 0;
  for (const double speed : {1.0, 1.3, 1.6, 2.0, 2.5, 3.0}) {
    const Cluster cluster = unlike_devices(speed);
    const CostModel costs(cluster);
    const Request request = asked(graph, costs, analysis, 32);
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, kLayersOfChains);
    CandidateSet candidates(request, pools, synthesis);
    const int layers = static_cast<int>(synthesis.layers().layers.size());
    for (int cut = 1; cut < layers; ++cut) {
      const std::vector<StageConfig> configs(2, {2, 16, 0, StageStyle::kBest});
      candidates.add({PlanCandidate{{{16, {{0, cut, 0, 1}, {cut, layers, 1, 1}}, configs}}}});
    }
    candidates.choose(layers);
    const std::optional<FinerPlan> found = with_finer_cuts(request, pools, candidates);
    if (!found) continue;
    ++faster;
    EXPECT_LT(found->step, candidates.best_step());
    EXPECT_EQ(found->step, simulate(lower(graph, found->plan, cluster, {}), costs).step);
    const std::string& first = found->plan.pipelines.at(0).stages.at(1).first;
    const PreparedStages& stages = synthesis.stages();
    for (const Layer& layer : synthesis.layers().layers)
      EXPECT_NE(first, stages.names()[at(stages.positions().sequence[at(layer.begin)])]);
  }
  EXPECT_GE(faster, 2);
}

// Stages of two pipelines take equally long, but one has a row more: only their cuts move.
TEST(FineCuts, IdenticalPipelinesKeepTheirRows) {
  const Graph graph = gpt();
  const GraphAnalysis analysis = analyse(graph, {});
  int faster = 0;
  for (const double speed : {1.0, 1.3, 1.6, 2.0, 2.5, 3.0}) {
    const Cluster cluster = unlike_devices(speed, 2);
    const CostModel costs(cluster);
    const Request request = asked(graph, costs, analysis, 33);
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, kLayersOfChains);
    CandidateSet candidates(request, pools, synthesis);
    const int layers = static_cast<int>(synthesis.layers().layers.size());
    for (int cut = 1; cut < layers; ++cut) {
      const std::vector<StageConfig> configs(2, {2, 9, 0, StageStyle::kBest});
      const std::vector<StageRange> stages{{0, cut, 0, 1}, {cut, layers, 1, 1}};
      candidates.add({PlanCandidate{{{9, stages, configs, 17}, {9, stages, configs, 16}}}});
    }
    candidates.choose(layers);
    const std::optional<FinerPlan> found = with_finer_cuts(request, pools, candidates);
    if (!found) continue;
    ++faster;
    const std::vector<Pipeline>& pipelines = found->plan.pipelines;
    EXPECT_EQ(pipelines.at(0).stages.at(1).first, pipelines.at(1).stages.at(1).first);
    for (const size_t p : {0U, 1U}) {
      int64_t rows = 0;
      for (const Microbatch& each : pipelines[p].microbatches) rows += each.rows;
      EXPECT_EQ(rows, p == 0 ? 17 : 16);
    }
  }
  EXPECT_GE(faster, 1);
}

}  // namespace
}  // namespace medley
