#include "medley/synthesis/work_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "medley/base/files.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/text.h"
#include "medley/profile/profile.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

Cluster four_devices() {
  DeviceKind kind;
  kind.name = "whole";
  kind.sustained = {{DType::kF32, 1e9}};
  kind.memory_bandwidth = 1e9;
  kind.launch_latency = 1e-9;
  kind.memory_bytes = 1e9;
  Cluster made;
  made.pools = {{"pool", 1, 4, kind, false, 0}};
  made.networks = {{"lan", true, {"pool"}, 1e12, 1e-9, {}}};
  made.devices = list_devices(made.pools);
  return made;
}

// Returns roofline times up to `rows` rows, `factor` times as long beyond: a full cache.
Profile with_cache(const Graph& prepared, const Cluster& cluster, int64_t rows, double factor) {
  const CostModel analytic(cluster);
  const DeviceKind& kind = cluster.pools[0].kind;
  std::map<std::string, OpMeasurement> ops;
  for (int64_t each = 1; each <= 256; each *= 2)
    for (const Op& op : prepared.ops) {
      const SizedOp sized = sized_op(prepared, op, std::vector(prepared.symbols.size(), each));
      const double time = static_cast<double>(analytic.op(kind, sized).value.value);
      if (time <= 0) continue;
      const auto taken = static_cast<int64_t>(each <= rows ? time : time * factor);
      ops.emplace(sized.key, OpMeasurement{kind.name, sized, {std::max<int64_t>(1, taken)}, 1});
    }
  Profile profile{"cache", {}, {}, {}};
  for (const auto& [key, measured] : ops) profile.ops.push_back(measured);
  return profile;
}

// Four devices whose rows fit in a cache are more than four times as fast as one without.
TEST(WorkBound, IsNoMoreThanAStepWhateverTheProfile) {
  const Graph graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
  const Cluster cluster = four_devices();
  const GraphAnalysis analysis = analyse(graph, {});
  for (const double factor : {1.0, 4.0, 0.25}) {
    const CostModel costs(cluster, with_cache(analysis.prepared->graph, cluster, 64, factor));
    const Request request{.graph = graph,
                          .cluster = cluster,
                          .costs = &costs,
                          .strategy = "data-parallel-even",
                          .global_batch = 256,
                          .devices = {},
                          .optimizer = {},
                          .cache = {.analysis = &analysis}};
    const Plan plan = std::get<Plan>(data_parallel_even(request));
    const Nanoseconds bound = work_bound(request);
    EXPECT_LE(bound, simulate(lower(analysis, plan, cluster), costs).step) << factor;
    EXPECT_GT(bound, Nanoseconds{}) << factor;
  }
}

}  // namespace
}  // namespace medley
