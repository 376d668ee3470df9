#include "medley/candidates/pools.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include "medley/graph/graph.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

NodePool nodes(const char* name, int count, int per_node) {
  DeviceKind kind;
  kind.name = name;
  return {name, count, per_node, kind, false, 0};
}

Cluster cluster_of(std::vector<NodePool> pools, std::vector<Network> networks) {
  Cluster cluster{std::move(pools), std::move(networks), {}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Request request(const Graph& graph, const Cluster& cluster, std::vector<std::string> devices) {
  return {.graph = graph,
          .cluster = cluster,
          .strategy = "harp",
          .global_batch = 1,
          .devices = std::move(devices),
          .optimizer = {}};
}

TEST(Pools, AreThoseOfTheClusterThatAreUsed) {
  const Graph graph;
  const Cluster cluster = cluster_of({nodes("a", 2, 2), nodes("b", 1, 3)}, {});
  const std::vector<DevicePool> all = pools_of(request(graph, cluster, {}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(all[0].per_node, 2);
  EXPECT_THAT(all[1].devices, ElementsAre(4, 5, 6));
  // A node with only one used device differs from one with two.
  const auto some = pools_of(request(graph, cluster, {"a/1/1", "a/0/0", "a/1/0", "b/0/2"}));
  ASSERT_EQ(some.size(), 3u);
  EXPECT_THAT(some[0].devices, ElementsAre(0));
  EXPECT_THAT(some[1].devices, ElementsAre(2, 3));
  EXPECT_THAT(some[2].devices, ElementsAre(6));
}

// Pools that equal nodes of a single pool.
TEST(Pools, EqualPoolsAreJoinedIfThereAreMany) {
  std::vector<NodePool> all;
  Network lan{"lan", false, {}, 1e9, 1e-3, {}};
  for (const char* kind : {"a", "b"})
    for (int i = 0; i < 5; ++i) {
      all.push_back(nodes(kind, i == 0 ? 2 : 1, 2));
      all.back().name += std::to_string(i);
      lan.connects.push_back(all.back().name);
    }
  const std::vector<NodePool> few(all.begin(), all.begin() + 5);
  const Network fabric{"fabric", true, {}, 1e11, 1e-6, {}};
  const Graph graph;
  const auto pools_on = [&](const std::vector<NodePool>& pools, std::vector<Network> networks) {
    const Cluster cluster = cluster_of(pools, std::move(networks));
    const CostModel costs(cluster);
    Request asked = request(graph, cluster, {});
    asked.costs = &costs;
    return pools_of(asked);
  };
  const std::vector<DevicePool> joined = pools_on(all, {fabric, lan});
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_THAT(joined[0].devices, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_EQ(joined[1].devices.size(), 12u);
  EXPECT_TRUE(joined[0].uniform && joined[1].uniform);
  EXPECT_EQ(joined[0].per_node, 2);
  // Two nodes with a faster link between them are a pool of their own.
  const std::vector<DevicePool> near =
      pools_on(all, {fabric, lan, {"near", false, {"a3", "a4"}, 1e10, 1e-3, {}}});
  ASSERT_EQ(near.size(), 3u);
  EXPECT_THAT(near[1].devices, ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(pools_on(few, {fabric, lan}).size(), 5u);
  // All links differ: nodes of one type are joined, but are not interchangeable.
  std::vector<Network> chain{fabric, lan};
  for (size_t i = 0; i + 1 < all.size(); ++i)
    chain.push_back({"link" + std::to_string(i),
                     false,
                     {all[i].name, all[i + 1].name},
                     1e10 + 1e8 * static_cast<double>(i),
                     1e-3,
                     {}});
  const std::vector<DevicePool> unlike = pools_on(all, chain);
  ASSERT_EQ(unlike.size(), 2u);
  EXPECT_FALSE(unlike[0].uniform || unlike[1].uniform);
}

TEST(Pools, HaveMeshesThatDivideANodeAndWholeNodes) {
  const auto sizes = [](int count, int per_node) {
    return mesh_sizes({std::vector<int>(at(count * per_node)), per_node});
  };
  EXPECT_THAT(sizes(1, 1), ElementsAre(1));
  EXPECT_THAT(sizes(1, 8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(sizes(4, 8), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(sizes(3, 2), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(sizes(2, 6), ElementsAre(1, 2, 6, 12));
}

// Laid out largest first, a mesh smaller than a node stays within one.
TEST(Pools, AreLaidOutWithoutStraddlingNodes) {
  const std::vector<DevicePool> pools{{{0, 1, 2, 3, 4, 5, 6, 7}, 4, true}, {{8, 9}, 2, true}};
  const auto found = lay_out(pools, {{0, 1, 0, 1}, {1, 2, 1, 2}, {2, 3, 0, 2}, {3, 4, 0, 4}});
  EXPECT_THAT(
      found,
      ElementsAre(ElementsAre(6), ElementsAre(8, 9), ElementsAre(4, 5), ElementsAre(0, 1, 2, 3)));
}

// The stages that communicate with other pools are at the ports of different nodes.
TEST(Pools, AreLaidOutInOrderWhereNothingStraddles) {
  const std::vector<DevicePool> pools{{{0, 1, 2, 3}, 2, true}};
  EXPECT_THAT(lay_out(pools, {{0, 1, 0, 1}, {1, 2, 0, 1}, {2, 3, 0, 2}}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3)));
}

// Eight devices in one node and four in two nodes. A unit is two of the first and one of the
// others; two units contain a whole node of the others.
TEST(Pools, TwoKindsMakeOnePoolOfUnits) {
  const DevicePool a{{0, 1, 2, 3, 4, 5, 6, 7}, 8}, b{{8, 9, 10, 11}, 2};
  std::map<int, double> speeds;
  for (int device = 0; device < 12; ++device) speeds[device] = device < 8 ? 1 : 0.5;
  const DevicePool pool = mixed(a, b, speeds);
  EXPECT_THAT(pool.devices, ElementsAre(0, 1, 8, 2, 3, 9, 4, 5, 10, 6, 7, 11));
  EXPECT_EQ(pool.speeds, speeds);
  EXPECT_EQ(pool.per_node, 12);
  EXPECT_THAT(mesh_sizes(pool), ElementsAre(3, 6, 12));
  // A third type is added to whole units of the others.
  const DevicePool c{{12, 13}, 2};
  speeds[12] = speeds[13] = 0.25;
  EXPECT_THAT(mesh_sizes(mixed(pool, c, speeds)), ElementsAre(7, 14));
  // Meshes are sorted by node.
  EXPECT_THAT(lay_out({pool}, {{0, 1, 0, 3}, {1, 2, 0, 6}}),
              ElementsAre(ElementsAre(4, 5, 10), ElementsAre(0, 1, 2, 3, 8, 9)));
}

// Units never straddle nodes: three devices of a node and two of another are one unit.
TEST(Pools, TwoKindsHaveUnitsOfWholeNodesIfNothingElseDivides) {
  const DevicePool a{{0, 1, 2, 3, 4, 5}, 3}, b{{6, 7, 8, 9}, 2};
  std::map<int, double> speeds;
  for (int device = 0; device < 10; ++device) speeds[device] = 1;
  EXPECT_THAT(mesh_sizes(mixed(a, b, speeds)), ElementsAre(5, 10));
}

TEST(Pools, HaveNoLinkWhereNoNetworkJoinsThem) {
  const Cluster cluster = cluster_of({nodes("a", 1, 1), nodes("b", 2, 1), nodes("c", 1, 1)},
                                     {{"lan", false, {"a", "b"}, 1e9, 1e-3, {}}});
  const Graph graph;
  const auto pools = pools_of(request(graph, cluster, {}));
  const auto links = links_of(pools, Topology(cluster));
  ASSERT_TRUE(links[0][1] && links[1][0] && links[1][1]);
  EXPECT_FALSE(links[0][2] || links[2][1]);
  EXPECT_EQ(occupied(*links[0][1], Bytes{1'000'000}), Nanoseconds{1'000'000});
  EXPECT_EQ(links[1][1]->latency, Nanoseconds{1'000'000});
}

}  // namespace
}  // namespace medley
