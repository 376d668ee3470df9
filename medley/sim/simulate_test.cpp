#include "medley/sim/simulate.h"

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

class Simulate : public ::testing::Test {
 protected:
  Simulate() {
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

  Simulation simulation(const std::vector<std::vector<int64_t>>& microbatches) const {
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
    return simulate(lower(graph, plan, cluster, {}), CostModel(cluster));
  }

  static std::vector<Nanoseconds> computes(const Simulation& simulation) {
    std::vector<Nanoseconds> result;
    for (const SimulatedDevice& device : simulation.devices) result.push_back(device.computes);
    return result;
  }

  Graph graph;
  Cluster cluster;
};

TEST_F(Simulate, OneDeviceOnlyComputes) {
  const Simulation alone = simulation({{64}});
  EXPECT_THAT(computes(alone), ElementsAre(alone.step));
  EXPECT_EQ(alone.devices[0].communicates, Nanoseconds{});
  EXPECT_EQ(alone.devices[0].waits, Nanoseconds{});
  EXPECT_TRUE(alone.bytes_by_link.empty());
}

TEST_F(Simulate, EqualDevicesComputeEquallyLongAndWaitForTheNetworkOnly) {
  const Simulation three = simulation({{20, 20, 20}});
  EXPECT_THAT(computes(three), Each(three.devices[0].computes));
  for (const SimulatedDevice& device : three.devices) {
    EXPECT_GT(device.communicates, Nanoseconds{});
    EXPECT_GT(device.waits, Nanoseconds{});
    EXPECT_EQ(device.computes + device.waits, three.step);
  }
}

TEST_F(Simulate, TheSlowestDeviceSetsThePace) {
  const Simulation uneven = simulation({{40, 10, 10}});
  EXPECT_GT(uneven.devices[0].computes, uneven.devices[1].computes);
  EXPECT_EQ(uneven.devices[1].computes, uneven.devices[2].computes);
  EXPECT_GT(uneven.step, simulation({{20, 20, 20}}).step);
}

// Kernels are skipped where a shard has no rows; the update is not.
TEST_F(Simulate, WithoutRowsOnlyTheUpdateIsComputed) {
  const Simulation idle = simulation({{30, 30, 0}});
  EXPECT_LT(2 * idle.devices[2].computes.value, idle.devices[0].computes.value);
  EXPECT_GT(idle.devices[2].computes, Nanoseconds{});
}

// Gradients are summed once a step, so that a second micro-batch costs no communication.
TEST_F(Simulate, MicrobatchesAddComputeOnly) {
  const Simulation once = simulation({{20, 20, 20}});
  const Simulation twice = simulation({{20, 20, 20}, {20, 20, 20}});
  EXPECT_EQ(twice.bytes_by_link, once.bytes_by_link);
  EXPECT_GT(twice.devices[0].computes, once.devices[0].computes);
  EXPECT_LT(twice.devices[0].computes.value, 2 * once.devices[0].computes.value);
}

}  // namespace
}  // namespace medley
