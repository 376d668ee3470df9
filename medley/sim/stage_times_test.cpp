#include "medley/sim/stage_times.h"
#include "medley/base/at.h"

#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

Cluster equal_devices(int count) {
  DeviceKind kind;
  kind.name = "kind";
  kind.sustained = {{DType::kF32, 1e9}, {DType::kF64, 1e9}};
  kind.memory_bandwidth = 1e9;
  kind.launch_latency = 1e-6;
  kind.memory_bytes = 1e9;
  Cluster cluster;
  cluster.pools = {{"a", 1, count, kind, false, 0}};
  cluster.networks = {{"bus", true, {}, 1e9, 1e-6, {}}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// With all devices in lockstep, functions follow each other as in the simulator.
TEST(StageTimes, AddUpToTheSimulatedStep) {
  const Graph graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
  for (const int devices : {1, 2, 4}) {
    const Cluster cluster = equal_devices(devices);
    const CostModel costs(cluster);
    std::vector<std::string> names;
    for (const Device& device : cluster.devices) names.push_back(device.name);
    const std::vector<int64_t> rows(at(devices), 16);
    for (const int64_t count : {1, 4}) {
      const Plan plan = plan_of_rows(names, std::vector<std::vector<int64_t>>(at(count), rows));
      const Program program = lower(graph, plan, cluster, {});
      const FunctionTimes times = time_functions(program.stages[0], costs, 0);
      EXPECT_EQ((times.prologue + times.forward + times.backward) * count + times.update,
                simulate(program, costs).step)
          << devices << " devices, " << count << " micro-batches";
    }
  }
}

// Two nodes of two devices: messages between the first devices of the nodes share the ports of
// those between the second ones.
TEST(StageTimes, GroupsBetweenNodesShareTheirPorts) {
  const Graph graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
  Cluster cluster = equal_devices(1);
  cluster.pools[0].count = cluster.pools[0].devices_per_node = 2;
  cluster.networks.push_back({"lan", false, {"a"}, 1e6, 1e-6, {}});
  cluster.devices = list_devices(cluster.pools);
  const CostModel costs(cluster);
  Plan plan = plan_of_rows({"a/0/0", "a/1/0"}, {{16, 16}});
  Mesh& mesh = plan.pipelines[0].stages[0].mesh;
  mesh = {{"node", "device"}, {2, 2}, {"a/0/0", "a/0/1", "a/1/0", "a/1/1"}};
  const Program program = lower(graph, plan, cluster, {});
  const FunctionTimes times = time_functions(program.stages[0], costs, 0);
  const Nanoseconds sum = times.prologue + times.forward + times.backward + times.update;
  const Nanoseconds step = simulate(program, costs).step;
  EXPECT_NEAR(sum / step, 1.0, 0.02) << sum.value << " " << step.value;
}

}  // namespace
}  // namespace medley
