#include "medley/sim/schedule_request.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"

namespace medley {
namespace {

Cluster two_nodes(double memory_bytes) {
  Cluster cluster;
  const DeviceKind kind{"kind", {}, {{DType::kF32, 1e9}}, memory_bytes, 1e9, 1e-6};
  cluster.pools = {{"a", 2, 1, kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a"}, 1e9, 1e-6, {}}};
  return cluster;
}

Program lowered(const Cluster& cluster, std::vector<int64_t> counts) {
  LocalFiles files;
  const Graph graph = run_passes(parse_graph(files.read("tests/data/mlp.graph"), "mlp.graph"));
  Plan plan;
  plan.global_batch = 8000;
  plan.pipelines.resize(1);
  Pipeline& pipeline = plan.pipelines[0];
  pipeline.microbatches.assign(8, {1000, {}});
  pipeline.in_flight = std::move(counts);
  for (int s : {0, 1}) {
    Stage& stage = pipeline.stages.emplace_back();
    stage.mesh = {{"x"}, {1}, {"a/" + std::to_string(s) + "/0"}};
    if (s == 1) stage.first = "fc2/mm#0";
  }
  verify(plan, graph, cluster);
  return lower(graph, plan, cluster, {});
}

std::vector<int> limits(double memory_bytes, const std::vector<int64_t>& counts) {
  const Cluster cluster = two_nodes(memory_bytes);
  const Program program = lowered(cluster, counts);
  const CostModel costs(cluster);
  return schedule_request(program, 0, costs, simulate(program, costs, {.memory = true}))
      .max_in_flight;
}

int64_t peak(int64_t count) {
  return memory_use(lowered(two_nodes(1e9), {count, 1}).stages[0], 0).peak;
}

// For any current count the result fits; if the current one fits, it is not much smaller.
TEST(ScheduleRequestOf, MemoryLimitsWhatIsInFlight) {
  for (int64_t now : {1, 2, 4, 8})
    for (int64_t n : {1, 2, 3, 5, 7}) {
      SCOPED_TRACE(::testing::Message() << now << " in flight, memory for " << n);
      const int64_t limit = limits(static_cast<double>(peak(n)), {now, 1})[0];
      EXPECT_LE(limit, n);
      EXPECT_GE(limit, now <= n ? std::max(now, (n + 1) / 2) : 1);
      EXPECT_LE(peak(limit), peak(n));
    }
  EXPECT_EQ(limits(1e9, {2, 1})[0], 8);
  EXPECT_EQ(limits(1, {2, 1})[0], 1);
}

}  // namespace
}  // namespace medley
