#pragma once

// How devices share where the ports of their nodes carry most: what crosses a port grows with the
// share of its node, however fast the devices behind it are.

#include <vector>

#include "medley/network/topology.h"
#include "medley/sim/simulate.h"

namespace medley {

// Shares by speed, of which no node has more than a level that lies between the largest share by
// speed (0) and as much for every node (1); nodes below the level share what is left by speed:
//
//   share  |###|
//   of a   |###|..............  level
//   node   |   |---|     |---|
//          |   |   |---| |   |
//          +------------------> node
//
// Devices of a node share by speed. They sum to 1. `nodes`: which devices, by index, lie on each.
// Requires: speeds are positive; every device lies on one node; 0 <= level <= 1.
std::vector<double> shares_at_level(const std::vector<double>& speeds,
                                    const std::vector<std::vector<int>>& nodes,
                                    double level);

// At each of a few levels, for devices of the cluster that compute at these speeds; none where
// nodes are as fast as each other.
std::vector<std::vector<double>> shares_of_levels(const Cluster& cluster,
                                                  const std::vector<int>& devices,
                                                  const std::vector<double>& speeds);

// For how much of the step, but for what some device computes, the busiest link is busier than the
// links of its network are on average: at most so much can be gained by other shares of nodes, in
// [0, 1].
double uneven_ports(const Simulation& simulation, const Topology& topology);

}  // namespace medley
