#include "medley/synthesis/mesh_layouts.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::ElementsAre;

// Returns two nodes of two "a", then one node of three "b".
Cluster three_nodes() {
  Cluster cluster;
  cluster.pools = {{"a", 2, 2, {}, false, 0}, {"b", 1, 3, {}, false, 0}};
  for (int i = 0; i < 4; ++i)
    cluster.devices.push_back(
        {"a/" + std::to_string(i / 2) + "/" + std::to_string(i % 2), 0, i / 2, i % 2});
  for (int i = 0; i < 3; ++i) cluster.devices.push_back({"b/0/" + std::to_string(i), 1, 0, i});
  return cluster;
}

TEST(MeshLayouts, NodesOfEqualCountsMakeAFirstAxis) {
  const Cluster cluster = three_nodes();
  const std::vector<MeshLayout> layouts = mesh_layouts(cluster, {2, 0, 1, 4, 6, 3});
  ASSERT_EQ(layouts.size(), 2u);
  EXPECT_THAT(layouts[0].shape, ElementsAre(6));
  EXPECT_THAT(layouts[0].devices, ElementsAre(2, 0, 1, 4, 6, 3));
  EXPECT_THAT(layouts[1].shape, ElementsAre(3, 2));
  EXPECT_THAT(layouts[1].devices, ElementsAre(2, 3, 0, 1, 4, 6));
  const Mesh mesh = mesh_of(layouts[1], cluster);
  EXPECT_THAT(mesh.axes, ElementsAre("node", "device"));
  EXPECT_THAT(mesh.devices, ElementsAre("a/1/0", "a/1/1", "a/0/0", "a/0/1", "b/0/0", "b/0/2"));
  EXPECT_THAT(sums_of_places(layouts[1], {1, 2, 3, 4, 5, 6}), ElementsAre(3, 7, 11));
}

TEST(MeshLayouts, OneNodeUnequalNodesAndSingleDevicesHaveOneAxis) {
  const Cluster cluster = three_nodes();
  EXPECT_EQ(mesh_layouts(cluster, {4, 5, 6}).size(), 1u);
  EXPECT_EQ(mesh_layouts(cluster, {0, 1, 2, 3, 4, 5, 6}).size(), 1u);
  EXPECT_EQ(mesh_layouts(cluster, {0, 2, 4}).size(), 1u);
}

}  // namespace
}  // namespace medley
