#include "medley/sim/simulate.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/synthesis/data_parallel.h"

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
    cluster.devices = list_devices(cluster.pools);
  }

  Simulation simulation(const std::vector<std::vector<int64_t>>& microbatches) const {
    std::vector<std::string> devices;
    for (size_t i = 0; i < microbatches[0].size(); ++i) devices.push_back(cluster.devices[i].name);
    const Plan plan = plan_of_rows(std::move(devices), microbatches);
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

// Kernels are skipped on shards without rows; the update is not.
TEST_F(Simulate, WithoutRowsOnlyTheUpdateIsComputed) {
  const Simulation idle = simulation({{30, 30, 0}});
  EXPECT_LT(2 * idle.devices[2].computes.value, idle.devices[0].computes.value);
  EXPECT_GT(idle.devices[2].computes, Nanoseconds{});
}

// Gradients are summed once per step, so a second micro-batch adds no communication.
TEST_F(Simulate, MicrobatchesAddComputeOnly) {
  const Simulation once = simulation({{20, 20, 20}});
  const Simulation twice = simulation({{20, 20, 20}, {20, 20, 20}});
  EXPECT_EQ(twice.bytes_by_link, once.bytes_by_link);
  EXPECT_GT(twice.devices[0].computes, once.devices[0].computes);
  EXPECT_LT(twice.devices[0].computes.value, 2 * once.devices[0].computes.value);
}

// Returns a program of one device per node: a matmul of n ops, an all-reduce, and another matmul
// that does not need the sum.
Program overlapping(int num_devices, int64_t rows, int64_t width) {
  Program program;
  LoweredStage& stage = program.stages.emplace_back();
  for (int d = 0; d < num_devices; ++d) stage.devices.push_back(d);
  stage.mesh = {num_devices};
  const ValueId x = add_input(stage.graph, InputKind::kBatch, "x", {DType::kF32, {rows, 64}});
  const ValueId w = add_input(stage.graph, InputKind::kParameter, "w", {DType::kF32, {64, width}});
  Op op;
  op.name = "aten.mm.default";
  op.arguments = {ValueArgument{x}, ValueArgument{w}};
  const ValueId g = add_op(stage.graph, op, {{DType::kF32, {width}}}).at(0);
  const ValueId y = add_op(stage.graph, op, {{DType::kF32, {rows, width}}}).at(0);
  const auto sum = static_cast<ValueId>(stage.graph.values.size());
  stage.graph.values.push_back({{DType::kF32, {width}}, kNone, 0});
  Communication reduce;
  reduce.inputs = {g};
  reduce.outputs = {sum};
  reduce.name = "all_reduce g";
  stage.communications = {reduce};
  stage.functions = {{FunctionKind::kForward,
                      {Segment{{0}, {{}}}, Post{0, {g}}, Segment{{1}, {{y}}}, Wait{0}},
                      {}}};
  stage.calls = {{FunctionKind::kForward, 0}};
  stage.lifetimes.assign(stage.graph.values.size(), Lifetime::kMicrobatch);
  stage.tables = {std::vector<std::vector<int64_t>>(at(num_devices))};
  return program;
}

Cluster nodes_of(int count, double bandwidth, double flops = 1e9) {
  Cluster cluster;
  const DeviceKind kind{"kind", {}, {{DType::kF32, flops}}, 1e9, 1e12, 0};
  cluster.pools = {{"a", count, 1, kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a"}, bandwidth, 1e-5, {}}};
  return cluster;
}

// n devices, m bytes, 1 GB/s: every optimal algorithm sends 2 (n - 1) / n m bytes through each
// port; direct does it in two rounds of one latency.
TEST(SimulateClosedForm, AnAllReduceOnEqualLinks) {
  constexpr int kDevices = 4;
  constexpr int64_t kWidth = 100'000;
  const Program program = overlapping(kDevices, 1, kWidth);
  const CostModel costs(nodes_of(kDevices, 1e9, 1e12));
  const Simulation simulation = simulate(program, costs);
  const int64_t bytes = 4 * kWidth;
  const int64_t alone = 2 * 10'000 + 2 * (kDevices - 1) * bytes / kDevices;
  for (const SimulatedDevice& device : simulation.devices)
    EXPECT_NEAR(static_cast<double>(device.communicates.value), static_cast<double>(alone), 2);
  // The second matmul overlaps it.
  EXPECT_NEAR(static_cast<double>(simulation.step.value),
              static_cast<double>((simulation.devices[0].computes / 2).value + alone),
              2);
  EXPECT_EQ(simulation.bytes_by_link.at("lan:a/0:out"), 2 * (kDevices - 1) * bytes / kDevices);
}

TEST(SimulateClosedForm, ComputingHidesAShorterCommunication) {
  const Simulation simulation =
      simulate(overlapping(4, 10'000, 1'000), CostModel(nodes_of(4, 1e9)));
  EXPECT_EQ(simulation.step, simulation.devices[0].computes);
  EXPECT_EQ(simulation.devices[0].waits, Nanoseconds{});
  EXPECT_GT(simulation.devices[0].communicates, Nanoseconds{});
}

TEST_F(Simulate, NoFasterThanTheBusiestDeviceOrLink) {
  for (int64_t rows : {0, 3, 500, 40'000}) {
    const Simulation simulation = this->simulation({{40 + rows, 1, rows}, {2, rows, 7}});
    for (const SimulatedDevice& device : simulation.devices)
      EXPECT_GE(simulation.step, device.computes);
    for (const auto& [link, bytes] : simulation.bytes_by_link)
      EXPECT_GE(to_seconds(simulation.step).value, static_cast<double>(bytes) / 1e9) << link;
  }
}

// With fair sharing a faster link may delay a flow (Braess), but never by much.
TEST_F(Simulate, MoreBandwidthIsHardlyEverSlower) {
  Nanoseconds before = simulation({{40, 10, 10}, {5, 60, 0}}).step;
  for (int doubling = 0; doubling < 6; ++doubling) {
    cluster.networks[0].bandwidth *= 2;
    const Nanoseconds after = simulation({{40, 10, 10}, {5, 60, 0}}).step;
    EXPECT_LE(after / before, 1.02);
    before = after;
  }
}

TEST_F(Simulate, IsDeterministic) {
  EXPECT_EQ(simulation({{40, 10, 10}, {5, 60, 0}}), simulation({{40, 10, 10}, {5, 60, 0}}));
}

// Large groups use the estimate of each communication. Without late members it equals the time of
// the messages, except that devices enter rounds one by one.
TEST(SimulateEstimated, IsCloseToTheMessages) {
  for (int devices : {2, 5, 16}) {
    const Program program = overlapping(devices, 3, 100'000);
    const CostModel costs(nodes_of(devices, 1e9));
    const Simulation exact = simulate(program, costs);
    const Simulation estimated = simulate(program, costs, {.exact_messages = 0});
    EXPECT_TRUE(exact.exact);
    EXPECT_FALSE(estimated.exact);
    EXPECT_EQ(estimated.bytes_by_link, exact.bytes_by_link);
    EXPECT_NEAR(estimated.step / exact.step, 1, 0.001);
  }
}

}  // namespace
}  // namespace medley
