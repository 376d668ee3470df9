#include "medley/groups/autohet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/testing/sample_clusters.h"

namespace medley {
namespace {

using ::testing::SizeIs;

// Two pools joined by a link, the second half as fast.
class AutoHetTest : public ::testing::Test {
 protected:
  AutoHetTest()
      : graph(run_passes(
            parse_graph(LocalFiles().read("python/tests/golden/gpt.graph"), "gpt.graph"))) {}

  static Cluster two_pools(int fast, int slow, double bandwidth, double memory = 1e9) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e10}};
    kind.memory_bandwidth = 1e10;
    kind.launch_latency = 1e-7;
    kind.memory_bytes = memory;
    return two_speeds(fast,
                      slow,
                      kind,
                      {{"fabric", true, {}, 10e9, 1e-6, {}},
                       {"lan", false, {"fast", "slow"}, bandwidth, 1e-4, {}}});
  }

  Outcome outcome(const Cluster& cluster, const std::string& strategy, int64_t batch) const {
    return plan({.graph = graph,
                 .cluster = cluster,
                 .strategy = strategy,
                 .global_batch = batch,
                 .devices = {},
                 .optimizer = {}});
  }

  Plan planned(const Cluster& cluster, const std::string& strategy, int64_t batch) const {
    const Outcome found = outcome(cluster, strategy, batch);
    if (const auto* no = std::get_if<Infeasible>(&found)) {
      ADD_FAILURE() << no->reason;
      return {};
    }
    const Plan& plan = std::get<Plan>(found);
    verify(plan, graph, cluster);
    if (strategy != "auto") EXPECT_EQ(plan.strategy, strategy);
    for (const DeviceMemory& each : memory_uses(lower(graph, plan, cluster, {})))
      EXPECT_LE(static_cast<double>(each.use.peak), cluster.kind(each.device).memory_bytes);
    return plan;
  }

  Nanoseconds step(const Plan& plan, const Cluster& cluster) const {
    return simulate(lower(graph, plan, cluster, {}), CostModel(cluster)).step;
  }

  static int64_t rows(const Pipeline& pipeline) {
    int64_t sum = 0;
    for (const Microbatch& microbatch : pipeline.microbatches) sum += microbatch.rows;
    return sum;
  }

  Graph graph;
};

// Many rows per step overlap the gradients: each pool is a pipeline, or several, and the faster one
// has about twice the rows.
TEST_F(AutoHetTest, DividesRowsBySpeed) {
  const Cluster cluster = two_pools(2, 2, 200e6);
  const Plan found = planned(cluster, "autohet", 256);
  ASSERT_GE(found.pipelines.size(), 2u);
  int64_t fast = 0, slow = 0;
  for (const Pipeline& pipeline : found.pipelines) {
    bool mixed = false;
    const std::string first = pipeline.stages[0].mesh.devices[0].substr(0, 4);
    for (const Stage& stage : pipeline.stages)
      for (const std::string& device : stage.mesh.devices) mixed |= device.substr(0, 4) != first;
    if (mixed) GTEST_SKIP() << "a pipeline over both pools is as good";
    (first == "fast" ? fast : slow) += rows(pipeline);
  }
  EXPECT_EQ(fast + slow, 256);
  EXPECT_GE(static_cast<double>(fast), 1.5 * static_cast<double>(slow));
  EXPECT_LE(static_cast<double>(fast), 2.5 * static_cast<double>(slow));
  EXPECT_LT(step(found, cluster), step(planned(cluster, "data-parallel-even", 256), cluster));
  EXPECT_LT(step(found, cluster), step(planned(cluster, "megatron", 256), cluster));
}

TEST_F(AutoHetTest, IsTheSameEveryTime) {
  const Cluster cluster = two_pools(2, 2, 100e6);
  EXPECT_EQ(print(planned(cluster, "autohet", 64)), print(planned(cluster, "autohet", 64)));
}

// Data parallelism over both pools waits for the link in every step, one pipeline for every
// micro-batch. Only two sums of half of the gradients remain.
TEST_F(AutoHetTest, IsNotMuchSlowerThanAnyOtherWhereRowsAreMany) {
  const Cluster cluster = two_pools(4, 4, 200e6);
  const Nanoseconds own = step(planned(cluster, "autohet", 1024), cluster);
  for (const char* other : {"data-parallel-even", "data-parallel-proportional", "harp", "hap"})
    EXPECT_LE(own.value, step(planned(cluster, other, 1024), cluster).value * 21 / 20) << other;
}

TEST_F(AutoHetTest, AutoIsNeverSlower) {
  for (const double bandwidth : {20e6, 200e6, 2e9}) {
    const Cluster cluster = two_pools(2, 2, bandwidth);
    const Nanoseconds own = step(planned(cluster, "auto", 128), cluster);
    EXPECT_LE(own, step(planned(cluster, "autohet", 128), cluster)) << bandwidth;
  }
}

TEST_F(AutoHetTest, HasOnePipelineWhereThereAreNotRowsForTwo) {
  const Plan found = planned(two_pools(1, 1, 1e9), "autohet", 1);
  EXPECT_THAT(found.pipelines, SizeIs(1));
}

// The model does not fit on a pipeline of the slow pool alone, so the other pool takes part.
TEST_F(AutoHetTest, FitsWhereTwoPipelinesHardlyDo) {
  const Plan roomy = planned(two_pools(2, 2, 200e6), "autohet", 64);
  double most = 0;
  for (const DeviceMemory& each : memory_uses(lower(graph, roomy, two_pools(2, 2, 200e6), {})))
    most = std::max(most, static_cast<double>(each.use.peak));
  const Cluster tight = two_pools(2, 2, 200e6, 0.7 * most);
  planned(tight, "autohet", 64);  // checks memory
}

}  // namespace
}  // namespace medley
