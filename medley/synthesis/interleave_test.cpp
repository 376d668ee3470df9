// Two interleaved micro-batches are used only if they are faster and fit.

#include "medley/synthesis/interleave.h"

#include <gtest/gtest.h>

#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/memory/memory.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/spmd.h"

namespace medley {
namespace {

// Four devices on one low-bandwidth bus: matmuls are divided, and tensors are sent in every layer.
class InterleaveTest : public ::testing::Test {
 protected:
  InterleaveTest()
      : graph(run_passes(parse_graph(LocalFiles().read("tests/data/deep.graph"), "deep.graph"))) {
    const DeviceKind kind{"kind", {}, {{DType::kF32, 2e9}}, 16e6, 4e9, 1e-6};
    cluster.pools = {{"a", 1, 4, kind, false, 0}};
    cluster.devices = list_devices(cluster.pools);
    cluster.networks = {{"bus", true, {}, 1e7, 1e-5, {}}};
  }

  Request request(const CostModel& costs, const GraphAnalysis& analysis) const {
    return {.graph = graph,
            .cluster = cluster,
            .costs = &costs,
            .strategy = "hap",
            .global_batch = 256,
            .devices = {},
            .optimizer = {},
            .cache = {.analysis = &analysis}};
  }

  Plan tried(const Request& asked, const Plan& plan) const {
    return interleave_if_faster(asked, plan, lower(*asked.cache.analysis, plan, cluster));
  }

  // Returns a plan with all matmuls divided by outputs, and undivided rows.
  Plan divided(int count) const {
    Plan plan;
    plan.global_batch = 256;
    Pipeline& pipeline = plan.pipelines.emplace_back();
    for (int m = 0; m < count; ++m) pipeline.microbatches.push_back({256 / count, {}});
    Stage& stage = pipeline.stages.emplace_back();
    stage.mesh = {{"x"}, {4}, {"a/0/0", "a/0/1", "a/0/2", "a/0/3"}};
    stage.placements = {{"*weight", "S(0, even)"}};
    return plan;
  }

  Graph graph;
  Cluster cluster;
};

TEST_F(InterleaveTest, IsFasterWhereTensorsTravelInTheMiddle) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request asked = request(costs, analysis);
  const Plan one = divided(4);
  const Plan found = tried(asked, one);
  EXPECT_EQ(only_pipeline(found).interleave, 2);
  const auto time = [&](const Plan& plan) { return price(asked, lower(analysis, plan, cluster)); };
  EXPECT_LT(time(found), time(one));
  EXPECT_FALSE(find_misfit(found, asked));
}

TEST_F(InterleaveTest, KeepsTheNumberThatIsAskedFor) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Request asked = request(costs, analysis);
  asked.microbatches = 1;
  EXPECT_EQ(tried(asked, divided(1)), divided(1));
  asked.microbatches = 2;
  const Plan found = tried(asked, divided(2));
  EXPECT_EQ(only_pipeline(found).microbatches.size(), 2u);
  EXPECT_EQ(only_pipeline(found).interleave, 2);
}

// Data parallelism does not wait before the end of the step.
TEST_F(InterleaveTest, LeavesPlansThatWaitForNothing) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Plan rows = divided(4);
  for (Microbatch& each : only_pipeline(rows).microbatches) each.lengths = {16, 16, 16, 16};
  only_pipeline(rows).stages[0].placements.clear();
  EXPECT_EQ(tried(request(costs, analysis), rows), rows);
}

// Without memory for two in flight the micro-batches stay sequential.
TEST_F(InterleaveTest, TakesNoMemoryThatIsNotThere) {
  const GraphAnalysis analysis = analyse(graph, {});
  const Plan one = divided(256);
  double most = 0;
  for (const DeviceMemory& each : memory_uses(lower(analysis, one, cluster)))
    most = std::max(most, static_cast<double>(each.use.peak));
  cluster.pools[0].kind.memory_bytes = most;
  const CostModel costs(cluster);
  EXPECT_EQ(tried(request(costs, analysis), one), one);
}

}  // namespace
}  // namespace medley
