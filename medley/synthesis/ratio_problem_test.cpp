#include "medley/synthesis/ratio_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/memory/memory.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::Le;

Graph read_graph(const std::string& file) { return parse_graph(LocalFiles().read(file), file); }

// Returns `fast` devices of one type and `slow` ones that take `ratio` times as long.
Cluster cluster_of(int fast, int slow, double ratio, double bandwidth, double memory_bytes = 1e12) {
  DeviceKind kind;
  kind.name = "whole";
  kind.sustained = {{DType::kF32, 1e9}};
  kind.memory_bandwidth = 1e12;
  kind.launch_latency = 1e-7;
  kind.memory_bytes = memory_bytes;
  DeviceKind part = scaled(kind, 1 / ratio);
  part.name = "part";
  part.memory_bytes = memory_bytes;
  Cluster made;
  made.pools = {{"fast", fast, 1, kind, false, 0}, {"slow", slow, 1, part, false, 0}};
  made.networks = {{"lan", false, {"fast", "slow"}, bandwidth, 1e-7, {}}};
  made.devices = list_devices(made.pools);
  return made;
}

class RatioExtraction : public ::testing::Test {
 protected:
  Request request(const Cluster& cluster, int64_t rows) const {
    return {.graph = graph,
            .cluster = cluster,
            .strategy = "data-parallel-even",
            .global_batch = rows,
            .devices = {},
            .optimizer = optimizer};
  }
  Plan even_plan(const Cluster& cluster, int64_t rows, int64_t microbatches = 1) const {
    Request wanted = request(cluster, rows);
    wanted.microbatches = microbatches;
    return std::get<Plan>(plan(wanted));
  }
  // Returns Megatron's pair: the hidden width divided by its own part.
  Plan hidden_plan(const Cluster& cluster, int64_t rows, std::vector<double> shares) const {
    Plan plan = even_plan(cluster, rows);
    plan.pipelines[0].microbatches = {{rows, {}}};
    plan.parts = {{"hidden", {}, std::move(shares)}};
    plan.pipelines[0].stages[0].placements = {{"fc1.*", "S(0, hidden)"}};
    return plan;
  }
  Ratios ratios(const Plan& plan, const Cluster& cluster) const {
    return std::get<Ratios>(best_ratios(
        ratio_problem(plan, lower(graph, plan, cluster, optimizer), CostModel(cluster))));
  }
  int64_t step(const Plan& plan, const Cluster& cluster) const {
    return simulate(lower(graph, plan, cluster, optimizer), CostModel(cluster)).step.value;
  }

  const Graph graph = read_graph("tests/data/mlp.graph");
  const Optimizer optimizer;
};

std::vector<int64_t> rows_of(const Plan& plan) {
  std::vector<int64_t> rows(plan.pipelines[0].stages[0].mesh.devices.size(), 0);
  for (const Microbatch& microbatch : plan.pipelines[0].microbatches)
    for (size_t d = 0; d < rows.size(); ++d) rows[d] += microbatch.lengths.at(d);
  return rows;
}

// Rows of a compute-bound model are proportional to speed, from any start.
TEST_F(RatioExtraction, RowsGoBySpeed) {
  const Cluster cluster = cluster_of(2, 1, 2, 1e12);
  const CostModel costs(cluster);
  Request wanted = request(cluster, 600);
  wanted.costs = &costs;
  const GraphAnalysis analysis = analyse(graph, optimizer);
  wanted.cache.analysis = &analysis;
  const std::vector<int64_t> balanced = proportional_rows(wanted, devices_of(wanted));
  Plan plan = even_plan(cluster, 600);
  EXPECT_THAT(ratio_parts(plan), ElementsAre("rows"));
  for (int round = 0; round < 2; ++round) {
    plan = with_ratios(plan, ratios(plan, cluster).shares);
    for (size_t d = 0; d < 3; ++d) EXPECT_NEAR(rows_of(plan)[d], balanced[d], 3) << round;
    EXPECT_EQ(rows_of(plan)[0], rows_of(plan)[1]);
  }
}

// At the present lengths the extraction predicts the simulated step.
TEST_F(RatioExtraction, PredictsTheStep) {
  for (double bandwidth : {1e6, 1e8, 1e12}) {
    const Cluster cluster = cluster_of(2, 1, 2, bandwidth);
    const Plan even = even_plan(cluster, 600);
    const Plan better = with_ratios(even, ratios(even, cluster).shares);
    const double simulated = static_cast<double>(step(better, cluster)) * 1e-9;
    EXPECT_NEAR(ratios(better, cluster).seconds / simulated, 1, 0.1) << bandwidth;
  }
}

// No division of the rows, with the two fast devices equal, is much better in the simulator.
TEST_F(RatioExtraction, FoundRowsAreNearlyOptimal) {
  for (double ratio : {1.3, 3.0}) {
    for (double bandwidth : {1e7, 1e9}) {
      const Cluster cluster = cluster_of(2, 1, ratio, bandwidth);
      const Plan even = even_plan(cluster, 60);
      Plan found = with_ratios(even, ratios(even, cluster).shares);
      found = with_ratios(found, ratios(found, cluster).shares);
      int64_t best = step(even, cluster);
      EXPECT_THAT(step(found, cluster), Le(best));
      for (int64_t rows = 0; rows <= 30; ++rows) {
        Plan other = even;
        other.pipelines[0].microbatches = {{60, {rows, rows, 60 - 2 * rows}}};
        best = std::min(best, step(other, cluster));
      }
      EXPECT_LE(static_cast<double>(step(found, cluster)), 1.03 * static_cast<double>(best))
          << ratio << " " << bandwidth;
    }
  }
}

// A part of the model is proportional to speed, as rows are. Undivided work, which takes the slow
// device longer, reduces its share.
TEST_F(RatioExtraction, HiddenWidthGoesBySpeed) {
  const Cluster cluster = cluster_of(2, 1, 2, 1e12);
  const Plan even = hidden_plan(cluster, 4000, {1, 1, 1});
  EXPECT_THAT(ratio_parts(even), ElementsAre("hidden"));
  const std::vector<double> shares = ratios(even, cluster).shares[0];
  EXPECT_GT(shares[0], 0.4);
  EXPECT_EQ(shares[0], shares[1]);
  const int64_t found = step(with_ratios(even, {shares}), cluster);
  for (double width = 0; width <= 16; ++width) {
    const Plan other = hidden_plan(cluster, 4000, {width, width, 32 - 2 * width});
    EXPECT_LE(found, step(other, cluster)) << width;
  }
}

TEST_F(RatioExtraction, MicrobatchesKeepTheirNumberAndTheirSum) {
  const Cluster cluster = cluster_of(2, 1, 2, 1e12);
  const Plan even = even_plan(cluster, 61, 4);
  const Plan found = with_ratios(even, ratios(even, cluster).shares);
  ASSERT_EQ(found.pipelines[0].microbatches.size(), 4U);
  const std::vector<int64_t> rows = rows_of(found);
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), 61);
  EXPECT_THAT(rows, ElementsAre(Le(26), Le(26), Le(13)));
  EXPECT_LE(step(found, cluster), step(even, cluster));
}

// If memory is short on the fast devices, they get the most that fits.
TEST_F(RatioExtraction, MemoryCapsRows) {
  Cluster cluster = cluster_of(2, 1, 4, 1e12);
  const Plan even = even_plan(cluster, 6000);
  const double free_share = ratios(even, cluster).shares[0][0];
  const Program program = lower(graph, even, cluster, optimizer);
  cluster.pools[0].kind.memory_bytes =
      1.1 * static_cast<double>(memory_use(program.stages[0], 0).peak);
  const Ratios capped = ratios(even, cluster);
  EXPECT_LT(capped.shares[0][0], free_share);
  const Plan found = with_ratios(even, capped.shares);
  const Program lowered = lower(graph, found, cluster, optimizer);
  EXPECT_LE(static_cast<double>(memory_use(lowered.stages[0], 0).peak),
            cluster.pools[0].kind.memory_bytes);

  cluster.pools[0].kind.memory_bytes = cluster.pools[1].kind.memory_bytes = 1e5;
  const auto outcome =
      best_ratios(ratio_problem(even, lower(graph, even, cluster, optimizer), CostModel(cluster)));
  EXPECT_TRUE(std::holds_alternative<RatioMisfit>(outcome));
}

TEST_F(RatioExtraction, OneDeviceAndReplicatedBatch) {
  const Cluster cluster = cluster_of(1, 0, 2, 1e9);
  const Plan alone = even_plan(cluster, 8);
  EXPECT_THAT(ratios(alone, cluster).shares, ElementsAre(ElementsAre(1)));
  EXPECT_EQ(with_ratios(alone, {{1}}), alone);
  Plan replicated = alone;
  replicated.pipelines[0].microbatches = {{8, {}}};
  EXPECT_THAT(ratio_parts(replicated), ElementsAre());
  EXPECT_GT(ratios(replicated, cluster).seconds, 0);
}

// A gpt of two layers: gradients are reduced during the backward pass.
TEST(RatioExtractionOfAModel, IsNotSlowerThanTheEvenSplit) {
  const Graph graph = read_graph("python/tests/golden/gpt.graph");
  for (double bandwidth : {1e7, 1e9}) {
    const Cluster cluster = cluster_of(2, 2, 2, bandwidth);
    const CostModel costs(cluster);
    const Request request{.graph = graph,
                          .cluster = cluster,
                          .strategy = "data-parallel-even",
                          .global_batch = 48,
                          .devices = {},
                          .optimizer = {}};
    const Plan even = std::get<Plan>(plan(request));
    const auto step = [&](const Plan& plan) {
      return simulate(lower(graph, plan, cluster, {}), costs).step;
    };
    const auto outcome = best_ratios(ratio_problem(even, lower(graph, even, cluster, {}), costs));
    const Plan found = with_ratios(even, std::get<Ratios>(outcome).shares);
    EXPECT_LT(step(found), step(even)) << bandwidth;
  }
}

}  // namespace
}  // namespace medley
