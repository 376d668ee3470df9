#pragma once

// The devices of a request as a pipeline sees them: pools of equal nodes, the sizes of meshes that
// can be cut out of them, and the links between them. Two pools can be one, whose meshes have
// devices of both in the same proportion:
//
//   8 of one kind, 4 of another      a a a a a a a a   b b b b
//   as one pool of 4 units           a a b | a a b | a a b | a a b

#include <map>
#include <vector>

#include "medley/chains/pipeline.h"
#include "medley/synthesis/request.h"

namespace medley {

struct DevicePool {
  std::vector<int> devices;  // of the cluster, node after node
  int per_node = 1;
  bool alike = true;  // of one kind and equally connected, so that any of them stand for all
  int unit = 1;       // meshes have a multiple of so many devices
  // Rows per second, as shares, by device of the cluster. Empty: devices are of one kind.
  std::map<int, double> speeds{};
};

// In the order of the cluster. Nodes of which the request uses another number of devices are a pool
// of their own. Of more than kManyPools those are joined whose nodes differ in nothing but their
// names; if these are more still, all of one kind with as many devices in a node, whatever their
// links. Requires: costs, where there are so many.
std::vector<DevicePool> pools_of(const Request& request);
// The same; of more than kManyPools those that compute fastest. Requires: costs and an analysis.
std::vector<DevicePool> fastest_pools(const Request& request);

// Returns both pools as one of as many units as possible, which do not straddle nodes. `speeds`: of
// each device.
DevicePool mixed(const DevicePool& a, const DevicePool& b, const std::map<int, double>& speeds);

// Powers of two of units that divide a node, a node, powers of two of nodes, all. Each divides the
// next but for the last, so that meshes laid out from the largest on never straddle a node.
std::vector<int> mesh_sizes(const DevicePool& pool);

// Over the path from one device to another. Nothing: there is none.
std::optional<LinkCurve> link_of(const Topology& topology, int from, int to);

// Over the path from one pool to another, or between two nodes of one; [from][to]. Nothing: none.
std::vector<std::vector<std::optional<LinkCurve>>> links_of(const std::vector<DevicePool>& pools,
                                                            const Topology& topology);

// The devices of each stage of a plan: one stage after the other, so that neighbours are near and
// the ends of a pool far from each other; where a mesh would straddle a node, the largest first.
// Requires: sizes as of mesh_sizes().
std::vector<std::vector<int>> lay_out(const std::vector<DevicePool>& pools,
                                      const std::vector<StageRange>& stages);

}  // namespace medley
