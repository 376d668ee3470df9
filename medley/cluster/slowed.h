#pragma once

// Devices that are not as fast as others of their pool.

#include <map>

#include "medley/cluster/cluster.h"

namespace medley {

// Returns the cluster with some devices as fast as told (1: as their kind is): each such is in a
// pool of the same name, of a kind of its own ("CPU at 0.5"), and all else is as it was. Requires:
// devices of the cluster, speeds > 0.
Cluster slowed(Cluster cluster, const std::map<int, double>& speeds);

}  // namespace medley
