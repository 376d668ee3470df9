#include "medley/measured_layers/layer_plan.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/measured_layers/layer_planner.h"
#include "medley/testing/sample_tables.h"

namespace medley {
namespace {

constexpr int64_t kMs = 1'000'000;

// Two stages of one device each, four micro-batches of one row; 1 MB takes 1 ms to transfer.
LayerPlan two_stages() {
  LayerPlan plan;
  plan.global_batch = 4;
  plan.microbatches = 4;
  plan.schedule = "1f1b";
  plan.stages = {{0, 3, "fast", 1, 1, 2}, {3, 6, "fast", 1, 1, 1}};
  return plan;
}

std::string message(const LayerPlan& plan) {
  try {
    verify(plan, TableCosts(sample_table(), sample_cluster(2, 1)));
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

TEST(LayerPlan, PrintsWhatParsesBackEqual) {
  LayerPlan plan = two_stages();
  plan.table_hash = "abc";
  plan.cluster_hash = "def";
  plan.predicted = {17};
  plan.left_out = {"2 of t4: the table has no times of T4-16GB"};
  EXPECT_EQ(parse_layer_plan(print(plan), "p.json"), plan);
  EXPECT_EQ(parse_layer_plan(print(two_stages()), "p.json"), two_stages());
  EXPECT_TRUE(is_layer_plan(print(plan)));
  EXPECT_FALSE(is_layer_plan("{\"format\": \"medley-plan\"}"));
  EXPECT_FALSE(is_layer_plan("["));
}

TEST(LayerPlan, NamesThePlaceOfAMistake) {
  EXPECT_EQ(message(two_stages()), "accepted");
  LayerPlan plan = two_stages();
  plan.stages[1].begin = 4;
  EXPECT_EQ(message(plan), "stages[1].layers: found a first layer 4, expected 3");
  plan = two_stages();
  plan.stages[1].end = 5;
  EXPECT_EQ(message(plan), "stages[1].layers: found 5 layers, expected 6");
  plan.stages[1].end = 7;
  EXPECT_EQ(message(plan), "stages[1].layers: found 7 layers, expected at most 6");
  plan = two_stages();
  plan.stages[1].pool = "quick";
  EXPECT_EQ(message(plan), "stages[1].pool: found quick, expected a pool of the cluster");
  plan = two_stages();
  plan.stages[1].in_flight = 3;
  EXPECT_EQ(message(plan),
            "stages[1].in_flight: found 3, expected at most 2, as the stage before has");
  plan = two_stages();
  plan.stages[0].replicas = 3;
  EXPECT_THAT(message(plan), ::testing::StartsWith("stages[0].replicas: found 3, expected"));
  plan = two_stages();
  plan.table_hash = std::string(64, '0');
  EXPECT_THAT(message(plan),
              ::testing::StartsWith("table_hash: found 000000000000..., of another"));
  plan = two_stages();
  plan.microbatches = 1;
  plan.global_batch = 16;
  plan.stages = {{0, 3, "slow", 4, 1, 1}, {3, 6, "slow", 4, 1, 1}};
  EXPECT_EQ(message(plan),
            "stages[1].pool: found 8 devices of slow up to here, expected at most 4");
}

// 1F1B by hand: forward 2.5 ms and backward 5 ms on both stages, transfers of 1 ms.
//
//   s0   F0 0  F1 2.5       B0 12  F2 17        B1 19.5  F3 24.5  B2 29      B3 36.5 to 41.5
//   s1         F0 3.5 B0 6  F1 11  B1 13.5      F2 20.5  B2 23    F3 28  B3 30.5
TEST(LayerPlan, SimulatesWhatCanBeAddedUpByHand) {
  const TableCosts costs(sample_table(), sample_cluster(2, 0));
  const LayerStepTimes report = time_step(two_stages(), costs);
  EXPECT_EQ(report.boundaries[0].forward.value, kMs);
  EXPECT_EQ(report.stages[0].costs.forward.value, 2'500'000);
  EXPECT_EQ(report.stages[0].used.value, 4 * 192'000'000 + 2 * 24'000'000 + 4'000'000);
  EXPECT_EQ(report.stages[1].used.value, 4 * 192'000'000 + 24'000'000 + 5'000'000);
  EXPECT_EQ(report.step.value, 41'500'000 + 3 * kMs);  // with three updates
}

TEST(LayerPlan, HasTheCountsOf1F1BIfItSaysNone) {
  LayerPlan plan = two_stages();
  plan.stages.push_back({6, 7, "fast", 1, 1, 1});
  std::string text = print(plan);
  for (const int count : {2, 1, 1}) {
    const std::string said = ", \"in_flight\": " + std::to_string(count);
    text.erase(text.find(said), said.size());
  }
  const std::vector<LayerStage> stages = parse_layer_plan(text, "p.json").stages;
  EXPECT_EQ(stages[0].in_flight, 3);
  EXPECT_EQ(stages[1].in_flight, 2);
  EXPECT_EQ(stages[2].in_flight, 1);
  text.replace(text.find("\"microbatches\": 4"), 17, "\"microbatches\": 2");
  EXPECT_EQ(parse_layer_plan(text, "p.json").stages[0].in_flight, 2);
}

// The tied gradients are summed over both stages after both end their calls: 60 MB in 60 ms.
TEST(LayerPlan, AddsUpTheGradientsOfTiedLayers) {
  LayerTable table = sample_table();
  for (MeasuredBytes& each : table.bytes)
    for (const char* kind : {"embedding", "head"}) each.kinds[kind].tied = {60'000'000};
  const LayerStepTimes report = time_step(two_stages(), TableCosts(table, sample_cluster(2, 0)));
  EXPECT_EQ(report.tied.value, 60 * kMs);
  EXPECT_EQ(report.step.value, 41'500'000 + 60 * kMs + 3 * kMs);
}

// Both stages are idle for two transfers at each call.
TEST(LayerPlan, BlockingTransfersTakeTheTimeOfBothStages) {
  LayerTable table = sample_table();
  table.run.blocking = 2;
  const TableCosts costs(table, sample_cluster(2, 0));
  const LayerStepTimes report = time_step(two_stages(), costs);
  EXPECT_EQ(report.step.value, (2 + 3) * (7'500'000 + 4 * kMs) + 3 * kMs);
  EXPECT_EQ(report.boundaries[0].forward.value, 2 * kMs);
  EXPECT_TRUE(std::holds_alternative<LayerOutcome>(plan_layers({costs, 4, 0})));
  // Two devices that divide the layers send half each.
  LayerPlan divided = two_stages();
  for (LayerStage& stage : divided.stages) stage.tensor_parallel = 2;
  EXPECT_EQ(time_step(divided, costs).boundaries[0].forward.value, 2 * kMs);
}

}  // namespace
}  // namespace medley
