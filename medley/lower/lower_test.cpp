#include "medley/lower/lower.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/memory/memory.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Graph mlp() {
  std::ifstream file("tests/data/mlp.graph");
  std::stringstream text;
  text << file.rdbuf();
  return run_passes(parse_graph(text.str(), "mlp.graph"));
}

Cluster a_pair() {
  Cluster cluster;
  cluster.pools = {{"a", 2, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Returns the plan of both data-parallel strategies: only rows.
Plan rows_plan(std::vector<Microbatch> microbatches) {
  Plan plan;
  for (const Microbatch& microbatch : microbatches) plan.global_batch += microbatch.rows;
  Stage stage;
  stage.mesh = {{"x"}, {2}, {"a/0/0", "a/1/0"}};
  plan.pipelines = {{{}, std::move(microbatches), {stage}}};
  return plan;
}

std::vector<std::string> names(const LoweredStage& stage) {
  std::vector<std::string> all;
  for (const Communication& communication : stage.communications)
    all.push_back(communication.name.substr(0, communication.name.find(' ')));
  return all;
}

// Rows over devices need exactly three exchanges: the normaliser, one bucket of gradients, the
// loss.
TEST(Lower, DataParallelIsRowsAndReductions) {
  const Graph graph = mlp();
  Optimizer optimizer;
  optimizer.gradient_norm = false;
  const Program program = lower(graph, rows_plan({{8, {7, 1}}}), a_pair(), optimizer);
  EXPECT_THAT(names(program.stages[0]), ElementsAre("all_reduce", "all_reduce", "all_reduce"))
      << print(program);
}

// Weights have no rows of the batch.
TEST(Lower, RowsDivideTheBatchOnly) {
  Plan plan = rows_plan({{8, {7, 1}}});
  plan.pipelines[0].stages[0].ops["fc2/mm#0"] = "n rows";
  try {
    lower(mlp(), plan, a_pair(), {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "plan: ops[\"fc2/mm#0\"]: found \"n rows\", expected another part: \"rows\" "
                 "divides the batch, on the first axis");
  }
}

// A second micro-batch is another table of lengths and two more calls.
TEST(Lower, MicrobatchIsATable) {
  const Program program = lower(mlp(), rows_plan({{8, {7, 1}}, {3, {3, 0}}}), a_pair(), {});
  ASSERT_EQ(program.stages[0].tables.size(), 2u);
  EXPECT_THAT(program.stages[0].calls,
              ElementsAre(Call{FunctionKind::kPrologue, 0},
                          Call{FunctionKind::kPrologueLast, 1},
                          Call{FunctionKind::kForward, 0},
                          Call{FunctionKind::kBackward, 0},
                          Call{FunctionKind::kForward, 1},
                          Call{FunctionKind::kBackwardLast, 1},
                          Call{FunctionKind::kUpdate, 0}));
}

// One device takes the same path without exchanges.
TEST(Lower, OneDeviceExchangesNothing) {
  Plan plan = rows_plan({{8, {8}}});
  plan.pipelines[0].stages[0].mesh = {{"x"}, {1}, {"a/0/0"}};
  EXPECT_TRUE(lower(mlp(), plan, a_pair(), {}).stages[0].communications.empty());
}

// The optimizer's state cut evenly: gradients are reduce-scattered, parameters gathered after the
// update.
TEST(Lower, ZeroOneScattersGradients) {
  Plan plan = rows_plan({{8, {7, 1}}});
  plan.pipelines[0].stages[0].updates = {{"*", "S(0, even)"}};
  const Program program = lower(mlp(), plan, a_pair(), {});
  const LoweredStage& stage = program.stages[0];
  EXPECT_THAT(names(stage),
              ElementsAre("all_reduce",  // the number of rows
                          "reduce_scatter",
                          "reduce_scatter",
                          "reduce_scatter",
                          "reduce_scatter",
                          "all_reduce",  // the norm
                          "all_reduce",  // the loss
                          "all_gather",
                          "all_gather",
                          "all_gather",
                          "all_gather"));
  std::vector<int64_t> halves;  // halves of a gradient: kept and sent by the first device
  for (const Communication& each : stage.communications)
    for (const Size& size : each.send) halves.push_back(evaluate(size, stage.tables[0][0]));
  const int64_t w2 = 32 * 4 / 2, b2 = 4 / 2, w1 = 16 * 32 / 2, b1 = 32 / 2;
  EXPECT_THAT(halves, ElementsAre(w2, w2, b2, b2, w1, w1, b1, b1));
}

// Following one device for all with equal sizes is following each.
TEST(MemoryUses, AreThoseOfEachDevice) {
  Cluster cluster = a_pair();
  cluster.pools[0].count = 4;
  cluster.devices = list_devices(cluster.pools);
  Plan plan = rows_plan({{12, {4, 2, 4, 2}}, {9, {4, 2, 0, 3}}});
  plan.pipelines[0].stages[0].mesh = {{"x"}, {4}, {"a/0/0", "a/1/0", "a/2/0", "a/3/0"}};
  plan.pipelines[0].stages[0].updates = {{"*", "S(0, even)"}};
  const LoweredStage stage = lower(mlp(), plan, cluster, {}).stages[0];
  const std::vector<MemoryUse> uses = memory_uses(stage);
  ASSERT_EQ(uses.size(), 4u);
  for (int device = 0; device < 4; ++device) {
    const MemoryUse alone = memory_use(stage, device);
    EXPECT_EQ(uses[at(device)].at_peak, alone.at_peak);
    EXPECT_EQ(uses[at(device)].saved, alone.saved);
  }
  EXPECT_NE(uses[0].peak, uses[1].peak);
}

// Once on each device of the type, separate from updates and saved values.
TEST(MemoryUses, CountWhatKernelsKeep) {
  const Plan plan = rows_plan({{8, {4, 4}}});
  Cluster cluster = a_pair();
  const std::vector<MemoryUse> without = memory_uses(lower(mlp(), plan, cluster, {}).stages[0]);
  ASSERT_EQ(cluster.pools.size(), 1u);
  NodePool other = cluster.pools[0];
  cluster.pools[0].count = other.count = 1;
  other.name = "b";
  other.kind.name = "card";
  other.kind.workspace_bytes = 1000;
  cluster.pools.push_back(other);
  cluster.devices = list_devices(cluster.pools);
  Plan mixed = plan;
  mixed.pipelines[0].stages[0].mesh.devices = {"a/0/0", "b/0/0"};
  const LoweredStage stage = lower(mlp(), mixed, cluster, {}).stages[0];
  const std::vector<MemoryUse> uses = memory_uses(stage);
  EXPECT_EQ(uses[0].peak, without[0].peak);
  EXPECT_EQ(uses[1].peak, without[1].peak + 1000);
  EXPECT_EQ(uses[1].at_peak[at(MemoryPart::kWorkspaces)], 1000);
  EXPECT_EQ(uses[1].peak, memory_use(stage, 1).peak);
  EXPECT_EQ(uses[1].persistent, without[1].persistent);
  EXPECT_EQ(uses[1].saved, without[1].saved);
}

TEST(Lower, NamesWhatMatchesNoOp) {
  Plan plan = rows_plan({{8, {7, 1}}});
  plan.pipelines[0].stages[0].ops = {{"nothing/*", "replicate"}};
  try {
    (void)lower(mlp(), plan, a_pair(), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "plan: ops[\"nothing/*\"]: matches no op of the graph");
  }
}

}  // namespace
}  // namespace medley
