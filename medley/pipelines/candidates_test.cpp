// Where the pipelines of a candidate lie: both placements are made into plans, and the faster one,
// by the simulator, is taken.

#include "medley/pipelines/candidates.h"

#include <gmock/gmock.h>

#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/program/lower.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Two nodes of two devices, which compute so fast that it is the link between nodes that counts;
// two pipelines of two stages on single devices.
class PlacementTest : public ::testing::Test {
 protected:
  PlacementTest()
      : graph(run_passes(parse_graph(LocalFiles().read("tests/data/deep.graph"), "deep.graph"))) {
    const DeviceKind kind{"kind", {}, {{DType::kF32, 1e13}}, 1e10, 1e13, 1e-8};
    cluster.pools = {{"a", 2, 2, kind, false, 0}};
    cluster.devices = list_devices(cluster.pools);
    cluster.networks = {{"bus", true, {}, 10e9, 1e-6, {}}, {"lan", false, {"a"}, 1e8, 1e-5, {}}};
  }

  // What is chosen of both placements, or the plan of the one given.
  Plan best(int64_t rows, std::optional<Together> only = std::nullopt) const {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request request{.graph = graph,
                          .cluster = cluster,
                          .costs = &costs,
                          .strategy = "autohet",
                          .global_batch = rows,
                          .devices = {},
                          .optimizer = {},
                          .analysis = &analysis};
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, {.per_block = 2});
    CandidateSet candidates(request, pools, synthesis);
    const int layers = static_cast<int>(synthesis.layers().layers.size());
    const PipelineCandidate pipeline{
        4,
        {{0, 2, 0, 1}, {2, layers, 0, 1}},
        std::vector<StageConfig>(2, {rows / 8, 4, 0, StageStyle::kBest}),
        rows / 2};
    PlanCandidate candidate{{pipeline, pipeline}};
    if (only) {
      candidate.together = *only;
      candidates.evaluate(candidate);
    } else {
      candidates.add(candidate);
      EXPECT_THAT(candidates.timed(), SizeIs(2));
      candidates.choose(1);
    }
    return std::get<Plan>(candidates.best());
  }

  Nanoseconds step(const Plan& plan) const {
    return simulate(lower(graph, plan, cluster, {}), CostModel(cluster)).step;
  }

  // The found one is the faster of the two, and they differ.
  void expect_best(const Plan& found, Together faster, Together slower, int64_t rows) const {
    EXPECT_EQ(found, best(rows, faster));
    EXPECT_LT(step(found), step(best(rows, slower)));
  }

  static std::vector<std::vector<std::string>> devices(const Pipeline& pipeline) {
    std::vector<std::vector<std::string>> all;
    for (const Stage& stage : pipeline.stages) all.push_back(stage.mesh.devices);
    return all;
  }

  Graph graph;
  Cluster cluster;
};

// 8 rows are 8 KiB at each cut, the gradients of a layer 256 KiB.
TEST_F(PlacementTest, TheSameLayersAreTogetherWhereGradientsAreMore) {
  const Plan found = best(8);
  EXPECT_THAT(devices(found.pipelines.at(0)),
              ElementsAre(ElementsAre("a/0/0"), ElementsAre("a/1/0")));
  EXPECT_THAT(devices(found.pipelines.at(1)),
              ElementsAre(ElementsAre("a/0/1"), ElementsAre("a/1/1")));
  expect_best(found, Together::kSameLayers, Together::kNeighbours, 8);
}

// 8,192 rows are 8 MiB.
TEST_F(PlacementTest, NeighboursAreTogetherWhereActivationsAreMore) {
  const Plan found = best(8192);
  EXPECT_THAT(devices(found.pipelines.at(0)),
              ElementsAre(ElementsAre("a/0/0"), ElementsAre("a/0/1")));
  EXPECT_THAT(devices(found.pipelines.at(1)),
              ElementsAre(ElementsAre("a/1/0"), ElementsAre("a/1/1")));
  expect_best(found, Together::kNeighbours, Together::kSameLayers, 8192);
}

}  // namespace
}  // namespace medley
