#include "medley/network/topology.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/cluster/slowed.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

Cluster two_pools(std::vector<Network> networks) {
  Cluster cluster;
  for (const char* name : {"a", "b"}) {
    NodePool pool;
    pool.name = name;
    pool.count = pool.devices_per_node = 2;
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = std::move(networks);
  return cluster;
}

const Network kFabric{"fabric", true, {}, 100e9, 1e-6, std::nullopt};
const Network kLan{"lan", false, {"a", "b"}, 1e9, 5e-6, std::nullopt};

std::vector<std::string> link_names(const Topology& topology, int from, int to) {
  std::vector<std::string> names;
  for (int link : topology.path(from, to).links) names.push_back(topology.links()[at(link)].name);
  return names;
}

TEST(Topology, FabricInsideANodeSwitchBetweenNodes) {
  const Topology topology(two_pools({kLan, kFabric}));
  EXPECT_THAT(link_names(topology, 0, 1), ElementsAre("fabric:a/0/0:out", "fabric:a/0/1:in"));
  EXPECT_THAT(link_names(topology, 0, 3), ElementsAre("lan:a/0:out", "lan:a/1:in"));
  EXPECT_THAT(link_names(topology, 1, 6), ElementsAre("lan:a/0:out", "lan:b/1:in"));
  EXPECT_THAT(link_names(topology, 1, 1), ElementsAre());
  EXPECT_EQ(topology.path(0, 3).latency, Nanoseconds{5000});
  EXPECT_EQ(topology.path(0, 1).bandwidth, BytesPerSecond{100e9});
}

TEST(Topology, TheTrunkIsPassedBetweenPoolsOnlyAndHasTwoDirections) {
  Network lan = kLan;
  lan.trunk = 0.5e9;
  const Topology topology(two_pools({lan}));
  EXPECT_THAT(link_names(topology, 0, 4), ElementsAre("lan:a/0:out", "lan:trunk:up", "lan:b/0:in"));
  EXPECT_THAT(link_names(topology, 4, 0),
              ElementsAre("lan:b/0:out", "lan:trunk:down", "lan:a/0:in"));
  EXPECT_THAT(link_names(topology, 0, 2), ElementsAre("lan:a/0:out", "lan:a/1:in"));
  EXPECT_EQ(topology.path(0, 4).bandwidth, BytesPerSecond{0.5e9});
}

TEST(Topology, TheFastestNetworkOfAPairIsUsed) {
  Network slow = kLan, fast = kLan, equal = kLan;
  slow.name = "slow";
  slow.bandwidth = 0.1e9;
  fast.name = "fast";
  fast.connects = {"a"};
  fast.bandwidth = 9e9;
  equal.name = "equal";
  equal.latency = 1e-6;
  const Topology topology(two_pools({slow, kLan, fast, equal}));
  EXPECT_THAT(link_names(topology, 0, 2), ElementsAre("fast:a/0:out", "fast:a/1:in"));
  EXPECT_THAT(link_names(topology, 0, 4), ElementsAre("equal:a/0:out", "equal:b/0:in"));
}

// A fabric for one pool only; devices of the other pool's nodes use the switch.
TEST(Topology, AFabricMayBelongToSomePools) {
  Network fabric = kFabric;
  fabric.connects = {"b"};
  const Topology topology(two_pools({fabric, kLan}));
  EXPECT_THAT(link_names(topology, 0, 1), ElementsAre("lan:a/0:out", "lan:a/0:in"));
  EXPECT_THAT(link_names(topology, 4, 5), ElementsAre("fabric:b/0/0:out", "fabric:b/0/1:in"));
}

std::string message(const Topology& topology, int from, int to) {
  try {
    topology.path(from, to);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "found";
}

// A slowed device keeps its paths.
TEST(Topology, ASlowedDeviceHasThePathsThatItHad) {
  Network lan = kLan;
  lan.trunk = 0.5e9;
  for (const std::vector<Network>& networks : {std::vector{lan, kFabric}, std::vector{lan}}) {
    const Cluster cluster = two_pools(networks);
    const Topology before(cluster), after(slowed(cluster, {{0, 0.5}, {3, 0.5}, {6, 0.25}, {7, 1}}));
    for (int from = 0; from < 8; ++from)
      for (int to = 0; to < 8; ++to)
        if (networks.size() > 1 || before.node(from) != before.node(to))
          EXPECT_EQ(before.path(from, to), after.path(from, to)) << from << " to " << to;
    EXPECT_EQ(after.cluster().kind(3).memory_bandwidth, cluster.kind(3).memory_bandwidth / 2);
    EXPECT_EQ(after.cluster().kind(2), cluster.kind(2));
    EXPECT_EQ(after.cluster().kind(7), cluster.kind(7));
    EXPECT_EQ(after.cluster().kind(0), after.cluster().kind(3));
  }
}

TEST(Topology, AMissingLinkNamesThePools) {
  const Topology fabric_only(two_pools({kFabric}));
  EXPECT_EQ(message(fabric_only, 0, 4), "cluster: no network connects the pools a and b");
  EXPECT_EQ(message(fabric_only, 0, 2), "cluster: no network connects the nodes of pool a");
  EXPECT_EQ(message(Topology(two_pools({})), 0, 1),
            "cluster: no network connects the devices inside a node of pool a");
}

}  // namespace
}  // namespace medley
