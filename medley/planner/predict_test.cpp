#include "medley/planner/predict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/plan/plan.h"
#include "medley/program/lower.h"

namespace medley {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Predict : public ::testing::Test {
 protected:
  Predict() {
    LocalFiles files;
    graph = parse_graph(files.read("tests/data/mlp.graph"), "mlp.graph");
    DeviceKind kind;
    kind.name = "kind";
    kind.sustained = {{DType::kF32, 1e9}, {DType::kF64, 1e9}};
    kind.memory_bandwidth = 1e9;
    kind.launch_latency = 1e-6;
    kind.memory_bytes = 1e9;
    cluster.pools = {{"a", 1, 3, kind, false, 0}};
    cluster.networks = {{"bus", true, {}, 1e9, 1e-6, {}}};
    for (int i = 0; i < 3; ++i) cluster.devices.push_back({"a/0/" + std::to_string(i), 0, 0, i});
  }

  Prediction prediction(const std::vector<std::vector<int64_t>>& microbatches) const {
    Plan plan;
    Pipeline pipeline;
    for (const std::vector<int64_t>& lengths : microbatches) {
      int64_t rows = 0;
      for (int64_t length : lengths) rows += length;
      pipeline.microbatches.push_back({rows, lengths});
      plan.global_batch += rows;
    }
    Stage stage;
    const auto devices = static_cast<int64_t>(microbatches[0].size());
    stage.mesh = {{"data"}, {devices}, {}};
    for (int64_t i = 0; i < devices; ++i)
      stage.mesh.devices.push_back(cluster.devices[static_cast<size_t>(i)].name);
    pipeline.stages = {stage};
    plan.pipelines = {pipeline};
    return predict(lower(graph, plan, cluster, {}).stages[0], cluster);
  }

  Graph graph;
  Cluster cluster;
};

TEST_F(Predict, OneDeviceOnlyComputes) {
  const Prediction alone = prediction({{64}});
  EXPECT_THAT(alone.computes, ElementsAre(alone.step));
  EXPECT_EQ(alone.communicates, Nanoseconds{});
}

TEST_F(Predict, EqualDevicesComputeEquallyLongAndWaitForTheNetworkOnly) {
  const Prediction three = prediction({{20, 20, 20}});
  EXPECT_THAT(three.computes, Each(three.computes[0]));
  EXPECT_GT(three.communicates, Nanoseconds{});
  EXPECT_GT(three.step, three.computes[0]);
  EXPECT_LE(three.step, three.computes[0] + three.communicates);
}

TEST_F(Predict, TheSlowestDeviceSetsThePace) {
  const Prediction uneven = prediction({{40, 10, 10}});
  EXPECT_GT(uneven.computes[0], uneven.computes[1]);
  EXPECT_EQ(uneven.computes[1], uneven.computes[2]);
  EXPECT_GT(uneven.step, prediction({{20, 20, 20}}).step);
}

// Kernels are skipped where a shard has no rows; the update is not.
TEST_F(Predict, WithoutRowsOnlyTheUpdateIsComputed) {
  const Prediction idle = prediction({{30, 30, 0}});
  EXPECT_LT(2 * idle.computes[2].value, idle.computes[0].value);
  EXPECT_GT(idle.computes[2], Nanoseconds{});
}

// Gradients are summed once a step, so that a second micro-batch costs no communication.
TEST_F(Predict, MicrobatchesAddComputeOnly) {
  const Prediction once = prediction({{20, 20, 20}});
  const Prediction twice = prediction({{20, 20, 20}, {20, 20, 20}});
  EXPECT_EQ(twice.communicates, once.communicates);
  EXPECT_GT(twice.computes[0], once.computes[0]);
  EXPECT_LT(twice.computes[0].value, 2 * once.computes[0].value);
}

}  // namespace
}  // namespace medley
