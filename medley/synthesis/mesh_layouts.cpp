#include "medley/synthesis/mesh_layouts.h"

#include <algorithm>

namespace medley {

std::vector<MeshLayout> mesh_layouts(const Cluster& cluster, const std::vector<int>& devices) {
  const auto count = static_cast<int64_t>(devices.size());
  std::vector<MeshLayout> layouts{{devices, {count}}};
  const std::vector<std::vector<int>> nodes = by_node(cluster, devices);
  const size_t each = nodes[0].size();
  if (nodes.size() < 2 || each < 2 ||
      std::ranges::any_of(nodes, [&](const auto& node) { return node.size() != each; }))
    return layouts;
  MeshLayout by_node{{}, {static_cast<int64_t>(nodes.size()), static_cast<int64_t>(each)}};
  for (const std::vector<int>& node : nodes)
    by_node.devices.insert(by_node.devices.end(), node.begin(), node.end());
  layouts.push_back(std::move(by_node));
  return layouts;
}

Mesh mesh_of(const MeshLayout& layout, const Cluster& cluster) {
  Mesh mesh;
  mesh.axes = layout.shape.size() == 1 ? std::vector<std::string>{"data"}
                                       : std::vector<std::string>{"node", "device"};
  mesh.shape = layout.shape;
  mesh.devices = names_of(cluster, layout.devices);
  return mesh;
}

std::vector<double> sums_of_places(const MeshLayout& layout,
                                   const std::vector<double>& of_devices) {
  std::vector<double> sums(layout.num_places(), 0);
  for (size_t d = 0; d < of_devices.size(); ++d) sums[d / layout.per_place()] += of_devices[d];
  return sums;
}

std::vector<double> of_largest(std::vector<double> shares) {
  const double most = *std::max_element(shares.begin(), shares.end());
  for (double& each : shares) each = std::max(each / most, kMinShare);
  return shares;
}

}  // namespace medley
