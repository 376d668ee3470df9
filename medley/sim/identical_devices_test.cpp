// Devices in lockstep are simulated once. In a trace each has its own events, so all are simulated.

#include "medley/sim/identical_devices.h"

#include <gtest/gtest.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/testing/random_plan.h"
#include "medley/testing/sample_clusters.h"

namespace medley {
namespace {

constexpr uint64_t kIdenticalSeeds = 40;

class IdenticalDevices : public ::testing::Test {
 protected:
  IdenticalDevices()
      : mlp(parse("tests/data/mlp.graph")),
        gpt(run_passes(parse("python/tests/golden/gpt.graph"))) {
    DeviceKind kind;
    kind.name = "kind";
    kind.sustained = {{DType::kF32, 2e9}, {DType::kF64, 2e9}};
    kind.memory_bandwidth = 1e9;
    kind.launch_latency = 1e-6;
    kind.memory_bytes = 1e9;
    cluster = two_speeds(
        4,
        4,
        kind,
        {{"bus", true, {}, 1e9, 1e-6, {}}, {"lan", false, {"fast", "slow"}, 1e8, 1e-5, {}}});
    for (const Device& device : cluster.devices) names.push_back(device.name);
  }

  static Graph parse(const std::string& file) { return parse_graph(LocalFiles().read(file), file); }

  // Compares estimates of both; ops slow down by `slowdown` during communications.
  void expect_the_same(const Graph& graph, const Plan& plan, double slowdown = 1) {
    const SizedOp other{
        "aten.gelu.default(f32[9])", "aten.gelu.default", WorkClass::kMemory, DType::kF32, {0, 72}};
    const Profile profile{"null",
                          {{"kind", other, {1}, 1}, {"half", other, {1}, 1}},
                          {},
                          {{"kind", slowdown}, {"half", slowdown}}};
    const CostModel costs(cluster, profile);
    const Program program = lower(graph, plan, cluster, {});
    SimulateOptions options{.exact_messages = 0, .memory = true, .syncs = true};
    const Simulation once = simulate(program, costs, options);
    options.trace = true;
    Simulation each = simulate(program, costs, options);
    each.trace = {};
    ASSERT_EQ(once, each);
    for (const LoweredStage& stage : program.stages) {
      CommunicationPrices prices(stage, costs);
      followed += identical_devices(stage, costs, prices).size();
      devices += stage.devices.size();
    }
  }

  Graph mlp, gpt;
  Cluster cluster;
  std::vector<std::string> names;
  size_t followed = 0, devices = 0;
};

TEST_F(IdenticalDevices, AreFollowedOnceInAnyPlan) {
  for (uint64_t seed = 0; seed < kIdenticalSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const double slowdown = seed % 2 == 0 ? 1 : 1.5;
    expect_the_same(mlp, random_plan(mlp, names, 5000, seed), slowdown);
    expect_the_same(mlp, random_pipeline(mlp, names, 5000, seed), slowdown);
    expect_the_same(gpt, random_pipelines(gpt, names, 37, seed), slowdown);
    if (HasFatalFailure()) return;
  }
  EXPECT_LT(followed, devices);
}

TEST_F(IdenticalDevices, AreAllOfOneKindIfEven) {
  for (const char* strategy : {"data-parallel-even", "hap-even", "megatron"})
    for (const double slowdown : {1.0, 1.5}) {
      SCOPED_TRACE(strategy);
      const Outcome found = plan({.graph = gpt,
                                  .cluster = cluster,
                                  .strategy = strategy,
                                  .global_batch = 64,
                                  .optimizer = {}});
      followed = devices = 0;
      expect_the_same(gpt, std::get<Plan>(found), slowdown);
      EXPECT_LE(2 * followed, devices);
    }
}

// Rows along one axis, tensors along the other: each row of the mesh has its own groups.
TEST_F(IdenticalDevices, MayBeOfSeveralGroupsThatTakeAsLong) {
  Request request{.graph = gpt,
                  .cluster = cluster,
                  .strategy = "hap",
                  .global_batch = 64,
                  .devices = {names.begin(), names.begin() + 4},
                  .optimizer = {}};
  Plan plan = std::get<Plan>(medley::plan(request));
  Stage& stage = plan.pipelines[0].stages[0];
  stage.mesh.axes = {"data", "model"};
  stage.mesh.shape = {2, 2};
  stage.ops.clear(), stage.placements.clear(), stage.updates.clear(), stage.batch.clear();
  plan.parts.clear();
  for (Microbatch& microbatch : plan.pipelines[0].microbatches)
    microbatch.lengths = {microbatch.rows / 2, microbatch.rows / 2};
  for (const double slowdown : {1.0, 1.5}) expect_the_same(gpt, plan, slowdown);
  EXPECT_LE(2 * followed, devices);
}

}  // namespace
}  // namespace medley
