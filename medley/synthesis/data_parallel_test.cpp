#include "medley/synthesis/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "medley/base/files.h"
#include "medley/cost/cost_model.h"
#include "medley/graph/text.h"
#include "medley/planner/planner.h"
#include "medley/profile/profile.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

Graph mlp() { return parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph"); }

// Returns a device and two that take twice as long, by their specifications.
Cluster two_kinds() {
  DeviceKind whole;
  whole.name = "whole";
  whole.sustained = {{DType::kF32, 1e9}};
  whole.memory_bandwidth = 1e9;
  whole.launch_latency = 1e-7;
  whole.memory_bytes = 1e9;
  DeviceKind half = scaled(whole, 0.5);
  half.name = "half";
  half.memory_bytes = 1e9;
  Cluster made;
  made.pools = {{"fast", 1, 1, whole, false, 0}, {"slow", 1, 2, half, false, 0}};
  made.networks = {{"lan", false, {"fast", "slow"}, 1e9, 1e-6, {}}};
  made.devices = list_devices(made.pools);
  return made;
}

// Returns times of ops for all powers of two of rows: the roofline times a random factor from 0.4
// to 1.6 per type, class and power of two of work.
Profile random_profile(const Graph& prepared, const Cluster& cluster, unsigned seed) {
  std::mt19937 random(seed);
  const CostModel analytic(cluster);
  Profile profile{"random", {}, {}, {}};
  for (const auto& pool : cluster.pools) {
    std::map<std::tuple<WorkClass, int>, double> factors;
    std::map<std::string, OpMeasurement> ops;
    for (int64_t rows = 1; rows <= 256; rows *= 2)
      for (const Op& op : prepared.ops) {
        const std::vector<int64_t> symbols(prepared.symbols.size(), rows);
        const SizedOp sized = sized_op(prepared, op, symbols);
        const Nanoseconds time = analytic.op(pool.kind, sized).value;
        if (time.value <= 0) continue;
        const double work = std::max(sized.work.flops, sized.work.bytes);
        auto [factor, is_new] = factors.try_emplace(
            {sized.work_class, static_cast<int>(std::log2(std::max(1.0, work)))});
        if (is_new) factor->second = std::uniform_real_distribution<double>(0.4, 1.6)(random);
        const auto taken = static_cast<int64_t>(static_cast<double>(time.value) * factor->second);
        ops[sized.key] = {pool.kind.name, sized, {std::max<int64_t>(1, taken)}, 1};
      }
    for (const auto& [key, measured] : ops) profile.ops.push_back(measured);
  }
  std::sort(profile.ops.begin(), profile.ops.end(), [](const auto& a, const auto& b) {
    return std::tie(a.kind, a.op.key) < std::tie(b.kind, b.op.key);
  });
  return profile;
}

// For any op times, the slowest device computes at most as long as with even rows. The tolerance of
// 1 % covers ops that lowering omits from the balanced graph. The step may still be longer, since
// devices that finish together overlap less communication.
TEST(DataParallel, ProportionalComputesNoLongerThanEvenUnderAnyProfile) {
  const Graph graph = mlp();
  const Cluster cluster = two_kinds();
  const GraphAnalysis analysis = analyse(graph, {});
  for (unsigned seed = 0; seed < 40; ++seed) {
    const CostModel costs(cluster, random_profile(analysis.prepared->graph, cluster, seed));
    const auto slowest = [&](const char* strategy) {
      const Request request{.graph = graph,
                            .cluster = cluster,
                            .costs = &costs,
                            .strategy = strategy,
                            .global_batch = 96,
                            .devices = {},
                            .optimizer = {},
                            .cache = {.analysis = &analysis}};
      const Plan found = std::get<Plan>(plan(request));
      Nanoseconds most;
      for (const SimulatedDevice& device : simulate(lower(analysis, found, cluster), costs).devices)
        most = std::max(most, device.computes);
      return most;
    };
    EXPECT_LE(to_seconds(slowest("data-parallel-proportional")).value,
              to_seconds(slowest("data-parallel-even")).value * 1.01)
        << seed;
  }
}

}  // namespace
}  // namespace medley
