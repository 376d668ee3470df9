// By default a layer table describes Medley's own runtime: with the times of a graph's stages it
// predicts the simulated step of the lowered program.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/measured_layers/layer_plan.h"
#include "medley/memory/memory.h"
#include "medley/plan/plan.h"
#include "medley/sim/simulate.h"
#include "medley/sim/stage_times.h"

namespace medley {
namespace {

constexpr int64_t kRows = 4096, kMicrobatches = 8;

// Two nodes of two devices.
Cluster two_nodes(double bus, double lan) {
  DeviceKind kind;
  kind.name = "kind";
  kind.sustained = {{DType::kF32, 1e9}, {DType::kF64, 1e9}};
  kind.memory_bandwidth = 1e9;
  kind.launch_latency = 1e-6;
  kind.memory_bytes = 1e9;
  Cluster cluster;
  cluster.pools = {{"a", 2, 2, kind, false, 0}};
  cluster.networks = {{"bus", true, {}, bus, 0, {}}, {"lan", false, {"a"}, lan, 0, {}}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Returns stages on both devices of a node. Each device has half of the rows or, if layers are
// divided, all inputs and outputs.
Program two_stages(bool divided, const Cluster& cluster) {
  const std::string whole =
      R"(, "batch": {"*": "R"}, "placements": {"*": "R"}, "ops": {"*": "replicate"})";
  std::string microbatches;
  for (int64_t i = 0; i < kMicrobatches; ++i)
    microbatches +=
        fmt::format(R"({}{{"rows": {}{}}})",
                    i > 0 ? ", " : "",
                    kRows,
                    divided ? "" : fmt::format(R"(, "lengths": [{0}, {0}])", kRows / 2));
  const std::string text = fmt::format(
      R"({{"format": "medley-plan", "version": 1, "global_batch": {}, "pipelines": [
           {{"microbatches": [{}], "stages": [
             {{"mesh": {{"devices": ["a/0/0", "a/0/1"]}}{}}},
             {{"first": "fc2/t#0", "mesh": {{"devices": ["a/1/0", "a/1/1"]}}{}}}]}}]}})",
      kRows * kMicrobatches,
      microbatches,
      divided ? whole : "",
      divided ? whole : R"(, "rows": [1, 1])");
  const Graph graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
  const Plan plan = parse_plan(text, "plan.json");
  verify(plan, graph, cluster);
  return lower(graph, plan, cluster, {});
}

TEST(MedleyRuntime, IsTheDefaultOfATable) {
  for (const bool divided : {false, true})
    // One of the bandwidths is low, or both, or none.
    for (const auto& [bus, lan] :
         {std::pair{1e9, 1e9}, {1e9, 1e8}, {1e9, 2e7}, {5e7, 1e9}, {5e7, 2e7}}) {
      const Cluster cluster = two_nodes(bus, lan);
      const CostModel costs(cluster);
      const Program program = two_stages(divided, cluster);
      const Cluster instant = two_nodes(1e18, lan);  // for the times of ops alone
      const CostModel ops(instant);
      LayerTable table;
      table.layers = {"first", "second"};
      const int degree = divided ? 2 : 1;
      MeasuredBytes bytes{degree, {}};
      MeasuredTimes times{"kind", degree, divided ? kRows : kRows / 2, {}};
      for (const int stage : {0, 1}) {
        const FunctionTimes found = time_functions(program.stages[at(stage)], ops, 0);
        bytes.kinds[table.layers[at(stage)]] = {{0}, {0}, {32 * 4}};
        times.kinds[table.layers[at(stage)]] = {
            found.prologue + found.forward, found.backward, found.update};
      }
      table.bytes = {bytes};
      table.times = {times};
      LayerPlan plan;
      plan.global_batch = kRows * kMicrobatches;
      plan.microbatches = kMicrobatches;
      plan.stages = {{0, 1, "a", 2 / degree, degree, 2}, {1, 2, "a", 2 / degree, degree, 1}};
      const TableCosts table_costs(table, cluster);
      // A call of a table sends at its end, the program as soon as the value exists.
      const double ratio = time_step(plan, table_costs).step / simulate(program, costs).step;
      EXPECT_GE(ratio, 1) << divided << " " << bus << " " << lan;
      EXPECT_LE(ratio, 1.04) << divided << " " << bus << " " << lan;
      // Two messages per direction; divided layers store them gathered.
      const MemoryParts parts = memory_use(program.stages[0], 0).at_peak;
      EXPECT_EQ(table_costs.stage(0, 1, {0, 2 / degree, degree}, kRows)->transient.value,
                parts[static_cast<size_t>(MemoryPart::kCommunication)] * degree);
    }
}

}  // namespace
}  // namespace medley
