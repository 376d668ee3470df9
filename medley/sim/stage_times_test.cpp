#include "medley/sim/stage_times.h"

#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/planner/data_parallel.h"
#include "medley/program/lower.h"
#include "medley/sim/simulate.h"

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

// Where all devices are equally far, the functions follow each other as in the simulator.
TEST(StageTimes, AddUpToTheSimulatedStep) {
  const Graph graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
  for (const int devices : {1, 2, 4}) {
    const Cluster cluster = equal_devices(devices);
    const CostModel costs(cluster);
    std::vector<std::string> names;
    for (const Device& device : cluster.devices) names.push_back(device.name);
    const std::vector<int64_t> rows(static_cast<size_t>(devices), 16);
    for (const int64_t count : {1, 4}) {
      const Plan plan =
          plan_of_rows(names, std::vector<std::vector<int64_t>>(static_cast<size_t>(count), rows));
      const Program program = lower(graph, plan, cluster, {});
      const FunctionTimes times = time_functions(program.stages[0], costs, 0);
      EXPECT_EQ((times.prologue + times.forward + times.backward) * count + times.update,
                simulate(program, costs).step)
          << devices << " devices, " << count << " micro-batches";
    }
  }
}

}  // namespace
}  // namespace medley
