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

}  // namespace
}  // namespace medley
