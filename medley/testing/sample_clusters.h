#pragma once

// A cluster for tests.

#include <utility>
#include <vector>

#include "medley/cluster/cluster.h"

namespace medley {

// Returns a node "fast" with such devices, and a node "slow" with devices of half the speed and
// equal memory.
inline Cluster two_speeds(int fast,
                          int slow,
                          const DeviceKind& kind,
                          std::vector<Network> networks) {
  DeviceKind half = scaled(kind, 0.5);
  half.name = "half";
  half.memory_bytes = kind.memory_bytes;
  Cluster cluster;
  cluster.pools = {{"fast", 1, fast, kind, false, 0}, {"slow", 1, slow, half, false, 0}};
  cluster.networks = std::move(networks);
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

}  // namespace medley
