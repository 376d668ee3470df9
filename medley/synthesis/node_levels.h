#pragma once

// Shares of devices if node ports are the bottleneck: traffic through a port grows with the share
// of its node, independently of device speeds.

#include <vector>

#include "medley/network/topology.h"
#include "medley/sim/simulate.h"

namespace medley {

// Shares by speed with a cap on each node's share. The level interpolates the cap between the
// largest share by speed (0) and equal shares of nodes (1). Nodes below the cap divide the rest by
// speed:
//
//   share  |###|
//   of a   |###|..............  level
//   node   |   |---|     |---|
//          |   |   |---| |   |
//          +------------------> node
//
// Returns shares that sum to 1; devices of a node share by speed. `nodes`: device indices of each.
// Requires: speeds are positive; every device is on one node; 0 <= level <= 1.
std::vector<double> shares_at_level(const std::vector<double>& speeds,
                                    const std::vector<std::vector<int>>& nodes,
                                    double level);

// Returns the shares at each of a few levels, for cluster devices of these speeds; none if all
// nodes are equally fast.
std::vector<std::vector<double>> shares_of_levels(const Cluster& cluster,
                                                  const std::vector<int>& devices,
                                                  const std::vector<double>& speeds);

// Returns the share of the step for which the busiest link exceeds the average of its network's
// links, outside compute: the most that other shares of nodes can gain, in [0, 1].
double uneven_ports(const Simulation& simulation, const Topology& topology);

}  // namespace medley
