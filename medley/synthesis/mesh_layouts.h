#pragma once

// Meshes for synthesis over devices: all of them on one axis, and nodes by devices of a node.

#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/plan/plan.h"

namespace medley {

struct MeshLayout {
  std::vector<int> devices;    // in the cluster, in row-major order
  std::vector<int64_t> shape;  // sizes of the axes
  size_t num_places() const { return at(shape[0]); }
  // Returns the number of devices in one place on the first axis.
  size_t per_place() const { return devices.size() / num_places(); }
};

// Returns the 1-D mesh, then the 2-D one if the devices are on two or more nodes, equally many and
// at least two on each. Nodes, and devices within a node, keep the given order.
std::vector<MeshLayout> mesh_layouts(const Cluster& cluster, const std::vector<int>& devices);

// Returns the mesh by device names, with axes "data", or "node" and "device".
Mesh mesh_of(const MeshLayout& layout, const Cluster& cluster);

// Returns for each place the sum over its devices.
std::vector<double> sums_of_places(const MeshLayout& layout, const std::vector<double>& of_devices);
// Returns shares relative to the largest, at least kMinShare.
std::vector<double> of_largest(std::vector<double> shares);

}  // namespace medley
