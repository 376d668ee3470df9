#pragma once

// Derives clusters in which some devices are slower than the rest of their pool.

#include <map>

#include "medley/cluster/cluster.h"

namespace medley {

// Returns the cluster with devices scaled to `speeds` (1: speed of the type). Each such device
// moves to a pool of the same name with a type of its own ("CPU at 0.5"). Requires: devices of the
// cluster, speeds > 0.
Cluster slowed(Cluster cluster, const std::map<int, double>& speeds);

}  // namespace medley
