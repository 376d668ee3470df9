#pragma once

// Derives clusters with other figures: some devices slower than the rest of their pool, or types
// and networks as measured.

#include <map>
#include <string>

#include "medley/cluster/cluster.h"

namespace medley {

// Returns the cluster with devices scaled to `speeds` (1: speed of the type). Each such device
// moves to a pool of the same name with a type of its own ("CPU at 0.5"). Requires: devices of the
// cluster, speeds > 0.
Cluster slowed(Cluster cluster, const std::map<int, double>& speeds);

// Times of ops of a device type relative to its figures: those limited by flops, and by memory.
struct OpFactors {
  double flops = 1, memory = 1;
};
struct LinkFactors {
  double bandwidth = 1;  // relative
  double latency = 0;    // additional seconds
};
// Returns the cluster with corrected figures, by type and by network. Requires: factors > 0.
Cluster corrected(Cluster cluster,
                  const std::map<std::string, OpFactors>& kinds,
                  const std::map<std::string, LinkFactors>& networks);

}  // namespace medley
