#include "medley/cluster/slowed.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::ElementsAre;

Cluster two_nodes() {
  DeviceKind kind;
  kind.name = "whole";
  kind.sustained = {{DType::kF32, 4e9}};
  kind.memory_bytes = 1e9;
  kind.memory_bandwidth = 8e9;
  kind.launch_latency = 1e-6;
  Cluster cluster;
  cluster.pools = {{"a", 2, 2, kind, true, 3}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

TEST(Slowed, OnlyTheKindOfThoseDevicesIsAnother) {
  const Cluster before = two_nodes(), after = slowed(before, {{1, 0.5}, {3, 0.5}, {2, 0.25}});
  EXPECT_THAT(names_of(after, {0, 1, 2, 3}), ElementsAre("a/0/0", "a/0/1", "a/1/0", "a/1/1"));
  EXPECT_EQ(after.kind(0), before.kind(0));
  EXPECT_EQ(after.kind(1).name, "whole at 0.5");
  EXPECT_EQ(after.kind(1), after.kind(3));
  EXPECT_EQ(after.kind(2).name, "whole at 0.25");
  EXPECT_EQ(after.kind(1).sustained.at(DType::kF32), 2e9);
  EXPECT_EQ(after.kind(1).memory_bandwidth, 4e9);
  EXPECT_EQ(after.kind(1).launch_latency, 2e-6);
  EXPECT_EQ(after.kind(1).memory_bytes, 1e9);
  for (const NodePool& pool : after.pools) {
    EXPECT_EQ(pool.name, "a");
    EXPECT_TRUE(pool.preemptible);
  }
}

TEST(Slowed, AsFastAsItsKindIsAsItWas) {
  EXPECT_EQ(slowed(two_nodes(), {{0, 1}, {3, 1}}), two_nodes());
  EXPECT_EQ(slowed(two_nodes(), {}), two_nodes());
}

TEST(Corrected, ChangesTypesAndNetworksByName) {
  Cluster before = two_nodes();
  before.networks = {{"lan", false, {"a"}, 1e9, 1e-5, std::nullopt}};
  const Cluster cluster = corrected(before, {{"whole", {2, 4}}}, {{"lan", {0.5, 1e-3}}});
  const DeviceKind &old = before.pools[0].kind, &found = cluster.pools[0].kind;
  EXPECT_DOUBLE_EQ(found.sustained.at(DType::kF32), old.sustained.at(DType::kF32) / 2);
  EXPECT_DOUBLE_EQ(found.memory_bandwidth, old.memory_bandwidth / 4);
  EXPECT_DOUBLE_EQ(found.launch_latency, old.launch_latency * 4);
  EXPECT_DOUBLE_EQ(cluster.networks[0].bandwidth, before.networks[0].bandwidth / 2);
  EXPECT_DOUBLE_EQ(cluster.networks[0].latency, before.networks[0].latency + 1e-3);
  EXPECT_NE(hash(cluster), hash(before));
  EXPECT_EQ(corrected(before, {{"other", {2, 2}}}, {{"other", {2, 2}}}), before);
}

}  // namespace
}  // namespace medley
