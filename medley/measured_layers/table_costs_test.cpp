#include "medley/measured_layers/table_costs.h"

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
  EXPECT_EQ(stage.transient.value, 4 * 2'000'000);  // sent and received, two of each
  EXPECT_EQ(stage.id, 1);
}

TEST(TableCosts, OffersMeasuredEntriesOnly) {
  const TableCosts costs(sample_table(), sample_cluster(1, 0));
  EXPECT_FALSE(costs.stage(0, 3, {0, 1, 1}, 8));  // 8 rows
  EXPECT_FALSE(costs.stage(0, 3, {0, 3, 1}, 4));  // fractional rows
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
  table.run = {2, 1.5, Bytes{7}, 3, 0};
  const TableCosts costs(table, sample_cluster(1, 0));
  const StageOption stage = *costs.stage(1, 2, {0, 2, 1}, 2);
  EXPECT_EQ(stage.persistent.value, 2 * 64'000'000 + 7);
  EXPECT_EQ(stage.saved.value, 12'000'000);
  EXPECT_EQ(stage.update.value, kMillisecond + 3 * 6'400'000);
}

// By its source (docs/formats/layers.md): six copies of f32 parameters, and a process's bytes
// before its first step, more if several divide the layers.
TEST(TableCosts, AppliesTheFiguresOfANamedRuntime) {
  LayerTable table = sample_table();
  table.run =
      parse_layer_table(R"({"format": "medley-layers", "version": 1, "model": "", "source": "",
    "layers": ["x"], "bytes": [], "times": [], "run": {"saved": 2, "runtime": "megatron-deepspeed"}})",
                        "t.json")
          .run;
  EXPECT_EQ(table.run, (RunConstants{6, 2, std::nullopt, 1, 1, 1}));
  const TableCosts costs(table, sample_cluster(1, 0));
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 1)->persistent.value, 2'384'000'000);
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 2}, 1)->persistent.value, 3'192'000'000);
}

// 2 MB enter and leave undivided: each of two devices receives half and, at 10 GB/s, the other half
// from its neighbour. The first layer receives nothing, the last one no gradient.
TEST(TableCosts, GathersWhatDividedLayersReceive) {
  const TableCosts costs(sample_table(), sample_cluster(2, 0));
  const auto calls = [&](int begin, int end) {
    const StageOption stage = *costs.stage(begin, end, {0, 2, 2}, 4);
    return std::pair{stage.forward.value, stage.backward.value};
  };
  const int64_t forward = 1'200'000, backward = 2 * forward, gather = 100'000;
  EXPECT_EQ(calls(1, 2), std::pair(forward + gather, backward + gather));
  EXPECT_EQ(calls(0, 1), std::pair(forward / 2, backward / 2 + gather));
  EXPECT_EQ(calls(5, 6), std::pair(forward / 2 + gather, backward / 2));
}

// Interpolates between 2 and 4 rows; between 1 and 2 rows it uses the faster ones of two.
TEST(TableCosts, InterpolatesRows) {
  LayerTable table = sample_table();
  for (MeasuredTimes& each : table.times)
    if (each.rows == 1) each.kinds["block"].forward = {9 * kMillisecond};
  const TableCosts costs(table, sample_cluster(1, 0));
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 3)->forward.value, 3 * kMillisecond);
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 3)->backward.value, 6 * kMillisecond);
  EXPECT_EQ(costs.stage(1, 2, {0, 1, 1}, 3)->saved.value, 24'000'000);
  table.times.erase(table.times.begin() + 1);  // 2 rows on one fast device
  const TableCosts wider(table, sample_cluster(1, 0));
  EXPECT_EQ(wider.stage(0, 1, {0, 1, 1}, 3)->forward.value, 1'500'000);
  EXPECT_EQ(wider.stage(1, 2, {0, 1, 1}, 2)->forward.value, 4 * kMillisecond);
  EXPECT_FALSE(costs.stage(1, 2, {0, 1, 1}, 5));
}

// The embedding and the head are one tensor. One stage has it once; each of two stages has it, with
// gradients summed over both.
TEST(TableCosts, HasTiedParametersOnceInAStage) {
  LayerTable table = sample_table();
  for (MeasuredBytes& each : table.bytes)
    for (const char* kind : {"embedding", "head"})
      each.kinds[kind].tied = {60'000'000 / each.tensor_parallel};
  const TableCosts costs(table, sample_cluster(2, 0));
  EXPECT_EQ(costs.stage(0, 6, {0, 1, 1}, 1)->persistent.value, 4 * (6 * 64'000'000 - 60'000'000));
  EXPECT_EQ(costs.stage(0, 6, {0, 1, 2}, 1)->persistent.value, 2 * (6 * 64'000'000 - 60'000'000));
  EXPECT_EQ(costs.stage(0, 5, {0, 1, 1}, 1)->persistent.value, 4 * 5 * 64'000'000);
  EXPECT_TRUE(costs.has_tied(0, 1));
  EXPECT_FALSE(costs.has_tied(1, 5));
  // 60 MB at 1 GB/s between nodes, for any degree; four replicas send four times as much.
  EXPECT_EQ(costs.add_tied({0, 1, 1}, {0, 1, 1}).value, 60 * kMillisecond);
  EXPECT_EQ(costs.add_tied({0, 1, 2}, {0, 1, 1}).value, 60 * kMillisecond);
  EXPECT_EQ(costs.add_tied({0, 4, 1}, {0, 4, 1}).value, 240 * kMillisecond);
}

// Each cause has its own message.
TEST(TableCosts, SaysWhyAStageCannotRun) {
  Cluster cluster = sample_cluster(2, 1);
  cluster.networks.erase(cluster.networks.begin() + 1);
  LayerTable table = sample_table();
  std::erase_if(table.times, [](const auto& each) { return each.device == "slow"; });
  const TableCosts costs(table, cluster);
  EXPECT_EQ(costs.misfit({0, 2, 2}, 8), "");
  EXPECT_EQ(costs.misfit({1, 1, 1}, 1),
            "pool: found slow, expected another: the table has no times of slow");
  EXPECT_EQ(costs.misfit({0, 1, 4}, 1),
            "tensor_parallel: found 4, expected a degree that was measured on fast and divides the "
            "4 devices of a node: 1, 2");
  EXPECT_EQ(costs.misfit({0, 3, 1}, 4),
            "replicas: found 3, expected a number that divides the 4 rows of a micro-batch");
  EXPECT_EQ(costs.misfit({0, 2, 1}, 10),
            "replicas: found 5 rows for each of 2, expected 1 to 4, as measured on fast at degree "
            "1");
  EXPECT_EQ(costs.misfit({0, 8, 1}, 8),
            "replicas: found 8 on fast, expected a network between its nodes: gradients have no "
            "way");
  cluster.pools[0].devices_per_node = 3;
  cluster.devices = list_devices(cluster.pools);
  std::erase_if(table.times, [](const auto& each) { return each.tensor_parallel == 1; });
  table.times.push_back({"slow", 1, 1, sample_table().times.front().kinds});
  EXPECT_EQ(TableCosts(table, cluster).unmeasured(0),
            "the table has times of fast at degree 2 only, which does not divide the 3 devices of "
            "a node");
}

// Two devices of each node take part. Concurrently they reach 4 GB/s, in sequence 1 GB/s.
TEST(TableCosts, AddsUpGradientsAsTheNetworkLetsThem) {
  Cluster cluster = sample_cluster(2, 0);
  cluster.networks[1].curves = {{1, {{1'000'000, 1e9}}}, {4, {{1'000'000, 4e9}}}};
  const LayerMesh mesh{0, 4, 2};  // on two nodes
  const int64_t inside =
      TableCosts(sample_table(), sample_cluster(2, 0)).all_reduce(1, 2, {0, 2, 2})->value;
  // 32 MB on each of four devices of a node, sent to the other node.
  EXPECT_EQ(TableCosts(sample_table(), cluster).all_reduce(1, 2, mesh)->value,
            inside + 16 * kMillisecond);
  cluster.networks[1].one_flow = true;
  EXPECT_EQ(TableCosts(sample_table(), cluster).all_reduce(1, 2, mesh)->value,
            inside + 64 * kMillisecond);
}

// With a single bandwidth, gradient sums take as long as the hierarchical collective of planners
// and emulator, or as the ring with one replica per node.
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
  EXPECT_FALSE(without_fabric.stage(0, 1, {1, 4, 1}, 4));  // no link for gradients
}

}  // namespace
}  // namespace medley
