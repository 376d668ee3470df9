#pragma once

// The devices of a request as a pipeline sees them: pools of equal nodes, the sizes of meshes that
// can be cut out of them, and the links between them.

#include <vector>

#include "medley/planner/pipeline.h"
#include "medley/planner/planner.h"

namespace medley {

struct DevicePool {
  std::vector<int> devices;  // of the cluster, node after node
  int per_node = 1;
  bool alike = true;  // of one kind and equally connected, so that any of them stand for all
};

// In the order of the cluster. Nodes of which the request uses another number of devices are a pool
// of their own.
std::vector<DevicePool> pools_of(const Request& request);

// Powers of two that divide a node, a node, powers of two of nodes, all. Each divides the next but
// for the last, so that meshes laid out from the largest on never straddle a node.
std::vector<int> mesh_sizes(const DevicePool& pool);

// Over the path from one device to another. Nothing: there is none.
std::optional<LinkCurve> link_of(const Topology& topology, int from, int to);

// Over the path from one pool to another, or between two nodes of one; [from][to]. Nothing: none.
std::vector<std::vector<std::optional<LinkCurve>>> links_of(const std::vector<DevicePool>& pools,
                                                            const Topology& topology);

// The devices of each stage of a plan. Requires: sizes as of mesh_sizes().
std::vector<std::vector<int>> lay_out(const std::vector<DevicePool>& pools,
                                      const std::vector<StageRange>& stages);

}  // namespace medley
