#pragma once

// Divides the devices of a request into pools of equal nodes, with the mesh sizes that can be cut
// out of them and the links between them. Two pools may be joined; each mesh then has devices of
// both in the same proportion:
//
//   8 of one type, 4 of another      a a a a a a a a   b b b b
//   as one pool of 4 units           a a b | a a b | a a b | a a b

#include <map>
#include <vector>

#include "medley/chains/pipeline.h"
#include "medley/synthesis/request.h"

namespace medley {

struct DevicePool {
  std::vector<int> devices;  // in the cluster, node after node
  int per_node = 1;
  bool uniform = true;  // one type, equally connected: interchangeable
  int unit = 1;         // each mesh has a multiple of it
  // [device of the cluster] share of rows per second. Empty: devices are of one type.
  std::map<int, double> speeds{};
};

// Returns the pools in cluster order. Nodes with another number of used devices form their own
// pool. Above kManyPools, merges pools that differ only in name, then pools of one device type and
// node size. Requires: costs, above kManyPools.
std::vector<DevicePool> pools_of(const Request& request);
// Like pools_of(), with the kManyPools fastest pools. Requires: costs and an analysis.
std::vector<DevicePool> fastest_pools(const Request& request);

// Returns both pools as one, with the largest number of units that do not straddle nodes. `speeds`:
// of each device.
DevicePool mixed(const DevicePool& a, const DevicePool& b, const std::map<int, double>& speeds);

// Returns powers of two of units that divide a node, a node, powers of two of nodes, and all. Each
// size but the last divides the next, so meshes laid out largest first stay within nodes.
std::vector<int> mesh_sizes(const DevicePool& pool);

// Returns the curve of the path between two devices; nullopt without a path.
std::optional<LinkCurve> link_of(const Topology& topology, int from, int to);

// Returns the curves between pools, and between two nodes of one; [from][to]. nullopt: no path.
std::vector<std::vector<std::optional<LinkCurve>>> links_of(const std::vector<DevicePool>& pools,
                                                            const Topology& topology);

// Returns the devices of each stage, stage after stage, so that neighbours are close and the ends
// of a pool far apart. If a mesh would straddle a node, larger ones are laid out first. Requires:
// sizes as of mesh_sizes().
std::vector<std::vector<int>> lay_out(const std::vector<DevicePool>& pools,
                                      const std::vector<StageRange>& stages);

}  // namespace medley
