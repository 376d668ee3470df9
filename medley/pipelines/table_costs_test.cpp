#include "medley/pipelines/table_costs.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/network/estimate.h"
#include "medley/testing/sample_tables.h"

namespace medley {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

TEST(TableCosts, AddsUpLayers) {
  const TableCosts costs(sample_table(), sample_cluster(1, 1));
  const StageOption stage = *costs.stage(0, 3, {0, 2, 1}, 4);  // 2 rows on each of 2 devices
  EXPECT_EQ(stage.forward.value, 5 * kMillisecond);            // 0.5 + 1 + 1, times 2 rows
  EXPECT_EQ(stage.backward.value, 10 * kMillisecond);
  // Updates, and 192 MB on a ring of two at 10 GB/s: each sends twice its half.
  EXPECT_EQ(stage.update.value, 3 * kMillisecond + 19'200'000);
  EXPECT_EQ(stage.persistent.value, 4 * 192'000'000);
  EXPECT_EQ(stage.saved.value, 2 * 24'000'000);
  EXPECT_EQ(stage.transient.value, 2'000'000);  // what it sends
  EXPECT_EQ(stage.id, 1);
}

TEST(TableCosts, OffersWhatWasMeasuredOnly) {
  const TableCosts costs(sample_table(), sample_cluster(1, 0));
  EXPECT_FALSE(costs.stage(0, 3, {0, 1, 1}, 8));  // 8 rows
  EXPECT_FALSE(costs.stage(0, 3, {0, 3, 1}, 4));  // no whole rows
  EXPECT_FALSE(costs.stage(0, 3, {0, 1, 4}, 4));  // degree 4
  EXPECT_TRUE(costs.stage(0, 3, {0, 1, 2}, 4));
  EXPECT_THAT(costs.degrees(0), ::testing::ElementsAre(1, 2));
}

TEST(TableCosts, FewerRowsTakeNoLongerThanMore) {
  LayerTable table = sample_table();
  for (MeasuredTimes& each : table.times)
    if (each.rows == 1) each.kinds["block"].forward = {9 * kMillisecond};
  const TableCosts costs(table, sample_cluster(1, 0));
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 1)->forward.value, 2 * kMillisecond);  // as two rows
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 1)->backward.value, 2 * kMillisecond);
}

TEST(TableCosts, AppliesTheConstantsOfARun) {
  LayerTable table = sample_table();
  table.run = {2, 1.5, {7}, 3, 0};
  const TableCosts costs(table, sample_cluster(1, 0));
  const StageOption stage = *costs.stage(1, 2, {0, 2, 1}, 2);
  EXPECT_EQ(stage.persistent.value, 2 * 64'000'000 + 7);
  EXPECT_EQ(stage.saved.value, 12'000'000);
  EXPECT_EQ(stage.update.value, kMillisecond + 3 * 6'400'000);
}

// Where one bandwidth says all, adding up gradients takes what the hierarchical collective takes
// that planners and emulator use, or the ring where each node has one replica.
TEST(TableCosts, AddsUpGradientsAsTheCollectivesDo) {
  const Cluster cluster = sample_cluster(4, 0);
  const TableCosts costs(sample_table(), cluster);
  const Topology topology(cluster);
  for (const int replicas : {2, 4, 8, 16}) {
    Collective collective{CommunicationKind::kAllReduce, {}, {64'000'000}, 1};
    for (int device = 0; device < replicas; ++device) collective.devices.push_back(device);
    const double expected = static_cast<double>(cheapest_estimate(collective, topology).time.value);
    EXPECT_NEAR(static_cast<double>(costs.all_reduce(1, 2, {0, replicas, 1})->value),
                expected,
                expected * 0.02)
        << replicas;
  }
}

TEST(TableCosts, FollowsCurvesByDevicesAndSize) {
  Cluster cluster = sample_cluster(4, 0);
  cluster.networks[1].curves = {{1, {{1'000'000, 1e8}, {4'000'000, 2e8}}}, {4, {{1'000'000, 4e8}}}};
  const TableCosts costs(sample_table(), cluster);
  EXPECT_EQ(occupied(*costs.link(0, 1, 0, 1), {1'000'000}).value, 10 * kMillisecond);
  EXPECT_EQ(occupied(*costs.link(0, 1, 0, 1), {4'000'000}).value, 20 * kMillisecond);
  EXPECT_EQ(occupied(*costs.link(0, 1, 0, 1), {500'000}).value, 5 * kMillisecond);
  EXPECT_EQ(occupied(*costs.link(0, 4, 0, 4), {4'000'000}).value, 10 * kMillisecond);
  EXPECT_EQ(occupied(*costs.link(0, 8, 0, 8), {4'000'000}).value,
            5 * kMillisecond);  // two nodes each
  EXPECT_EQ(occupied(*costs.link(0, 8, 0, 4), {4'000'000}).value,
            10 * kMillisecond);  // the narrower side
}

TEST(TableCosts, SaysWhenTheTableIsOfOtherDevices) {
  LayerTable table = sample_table();
  for (MeasuredTimes& each : table.times) each.device = "other";
  table.times.resize(1);
  try {
    const TableCosts costs(table, sample_cluster(1, 0));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "times: found those of other, expected some for a kind of the cluster: fast");
  }
}

TEST(TableCosts, HasNoLinkWithoutANetwork) {
  Cluster cluster = sample_cluster(2, 1);
  cluster.networks[1].connects = {"fast"};
  const TableCosts costs(sample_table(), cluster);
  EXPECT_TRUE(costs.link(0, 4, 0, 4));
  EXPECT_FALSE(costs.link(0, 4, 1, 4));
  cluster.networks.erase(cluster.networks.begin());
  const TableCosts without_fabric(sample_table(), cluster);
  EXPECT_TRUE(without_fabric.stage(0, 1, {0, 4, 1}, 4));   // over the other network
  EXPECT_FALSE(without_fabric.stage(0, 1, {1, 4, 1}, 4));  // gradients have no way
}

}  // namespace
}  // namespace medley
