#pragma once

// The meshes that synthesis may lay over devices: all of them on one axis, and nodes by devices of
// a node.

#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/plan/plan.h"

namespace medley {

struct MeshLayout {
  std::vector<int> devices;    // of the cluster, in row-major order
  std::vector<int64_t> shape;  // sizes of the axes
  size_t num_places() const { return at(shape[0]); }
  // Devices that share a place on the first axis.
  size_t per_place() const { return devices.size() / num_places(); }
};

// The one axis first; the other if the devices lie in two or more nodes, equally many and at least
// two in each. Nodes, and devices within a node, are in the order in which they are given.
std::vector<MeshLayout> mesh_layouts(const Cluster& cluster, const std::vector<int>& devices);

// By name, with axes "data", or "node" and "device".
Mesh mesh_of(const MeshLayout& layout, const Cluster& cluster);

// For each place, the sum over its devices.
std::vector<double> sums_of_places(const MeshLayout& layout, const std::vector<double>& of_devices);
// In units of the largest, none below the least share that a part may have.
std::vector<double> of_largest(std::vector<double> shares);

}  // namespace medley
