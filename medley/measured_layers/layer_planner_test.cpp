#include "medley/measured_layers/layer_planner.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/testing/sample_tables.h"

namespace medley {
namespace {

const LayerOutcome& found(const std::variant<LayerOutcome, Infeasible>& outcome) {
  EXPECT_TRUE(std::holds_alternative<LayerOutcome>(outcome))
      << std::get_if<Infeasible>(&outcome)->reason;
  return std::get<LayerOutcome>(outcome);
}

// Enumerates every chain of stages, pools in any order, timed under H-1F1B.
void try_all(const TableCosts& costs, LayerPlan& plan, std::vector<int> left, LayerPlan& best) {
  const int begin = plan.stages.empty() ? 0 : plan.stages.back().end;
  if (begin == costs.layers()) {
    try {
      verify(plan, costs);
    } catch (const Error&) {
      return;
    }
    const auto outcome = scheduled(plan, "h1f1b", costs);
    if (const auto* each = std::get_if<LayerOutcome>(&outcome))
      if (each->plan.predicted < best.predicted) best = each->plan;
    return;
  }
  for (int pool = 0; pool < costs.pools(); ++pool) {
    const std::string& name = costs.cluster().pools[at(pool)].name;
    for (const int degree : costs.degrees(pool))
      for (int replicas = 1; replicas * degree <= left[at(pool)]; replicas *= 2)
        for (int end = begin + 1; end <= costs.layers(); ++end) {
          plan.stages.push_back({begin, end, name, replicas, degree, 1});
          left[at(pool)] -= replicas * degree;
          try_all(costs, plan, left, best);
          left[at(pool)] += replicas * degree;
          plan.stages.pop_back();
        }
  }
}

// The search prices cuts by classes of widths, and a step by its steady-state period. The timer
// also models forwards that resume during warm-up. With different types, many micro-batches and
// overlapped transfers it may prefer a chain that the search drops.
TEST(LayerPlanner, IsAsGoodAsAllChainsOneByOne) {
  struct Case {
    int fast, slow, batch, blocking;
    double most;  // relative to the best step
  };
  for (const auto& [fast, slow, batch, blocking, most] : {Case{1, 1, 32, 0, 1.05},
                                                          {1, 0, 4, 0, 1},
                                                          {0, 1, 16, 0, 1},
                                                          {1, 1, 32, 1, 1},
                                                          {1, 0, 4, 1, 1},
                                                          {0, 1, 16, 1, 1}}) {
    LayerTable table = sample_table();
    table.run.blocking = blocking;
    const TableCosts costs(table, sample_cluster(fast, slow));
    LayerPlan plan, best;
    plan.global_batch = batch;
    plan.microbatches = batch;
    best.predicted = {INT64_MAX};
    std::vector<int> left;
    for (int p = 0; p < costs.pools(); ++p) left.push_back(costs.devices(p));
    try_all(costs, plan, left, best);
    const auto outcome = plan_layers({costs, batch, batch});
    verify(found(outcome).plan, costs);
    EXPECT_EQ(found(outcome).plan.predicted, found(outcome).report.step);
    EXPECT_GE(found(outcome).report.step, best.predicted);
    EXPECT_LE(found(outcome).report.step / best.predicted, most)
        << print(found(outcome).plan) << print(best);
  }
}

TEST(LayerPlanner, KeepsToTheMicrobatchesAsked) {
  const TableCosts costs(sample_table(), sample_cluster(1, 1));
  const auto outcome = plan_layers({costs, 16, 8});
  EXPECT_EQ(found(outcome).plan.microbatches, 8);
  EXPECT_THROW((void)plan_layers({costs, 16, 5}), Error);
  EXPECT_THROW((void)plan_layers({costs, 0, 0}), Error);
}

TEST(LayerPlanner, SaysWhatLacksMemory) {
  Cluster cluster = sample_cluster(1, 0);
  cluster.pools[0].kind.memory_bytes = 1e8;
  const TableCosts costs(sample_table(), cluster);
  const auto outcome = plan_layers({costs, 4, 0});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  EXPECT_THAT(std::get<Infeasible>(outcome).reason, ::testing::HasSubstr("on each device"));
}

// Devices are unused for one of four causes.
TEST(LayerPlanner, NamesDevicesThatFallAway) {
  const auto names = [](const LayerTable& table, const Cluster& cluster) {
    const TableCosts costs(table, cluster);
    std::string text;
    for (const LeftOut& each : left_out(found(plan_layers({costs, 8, 0})).plan, costs))
      text += std::to_string(each.devices) + " of " + each.pool + ": " + each.why + "\n";
    return text;
  };
  LayerTable fast_only = sample_table();
  std::erase_if(fast_only.times, [](const auto& each) { return each.device == "slow"; });
  EXPECT_EQ(names(fast_only, sample_cluster(1, 1)), "4 of slow: the table has no times of slow\n");
  Cluster apart = sample_cluster(1, 1);
  apart.networks[1].connects = {"fast"};
  EXPECT_EQ(names(sample_table(), apart),
            "4 of slow: no network links them to those of the plan\n");
  Cluster loose = sample_cluster(2, 0);
  loose.networks.pop_back();
  EXPECT_EQ(names(sample_table(), loose), "4 of fast: no network links the nodes\n");
  Cluster slow = sample_cluster(1, 1);
  slow.networks[1].bandwidth = 1e6;
  EXPECT_EQ(names(sample_table(), slow), "4 of slow: the best plan found is faster without them\n");
}

TEST(LayerPlanner, SaysWhichRowsWereMeasured) {
  LayerTable table = sample_table();
  std::erase_if(table.times, [](const auto& each) { return each.rows < 4; });
  const TableCosts costs(table, sample_cluster(1, 0));
  const auto outcome = plan_layers({costs, 2, 0});
  EXPECT_EQ(std::get<Infeasible>(outcome).reason,
            "no stage was measured: replicas: found 1 row for each of 1, expected 4 to 4, as "
            "measured on fast at degree 1");
}

TEST(LayerPlanner, IsNeverWorseThanTheGrid) {
  const TableCosts costs(sample_table(), sample_cluster(2, 2));
  const auto grid = plan_grid({costs, 32, 0});
  const auto best = plan_layers({costs, 32, 0});
  EXPECT_EQ(found(grid).plan.schedule, "1f1b");
  EXPECT_LE(found(best).report.step, found(grid).report.step);
}

TEST(LayerPlanner, PlansTheSameTwice) {
  const TableCosts costs(sample_table(), sample_cluster(2, 1));
  const auto once = plan_layers({costs, 32, 0}), twice = plan_layers({costs, 32, 0});
  EXPECT_EQ(print(found(once).plan), print(found(twice).plan));
}

}  // namespace
}  // namespace medley
