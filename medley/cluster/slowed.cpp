#include "medley/cluster/slowed.h"

#include <fmt/format.h>

#include "medley/base/at.h"

namespace medley {

Cluster slowed(Cluster cluster, const std::map<int, double>& speeds) {
  std::map<std::pair<int, double>, int> pools;  // (pool, speed) -> pool
  for (const auto& [device, speed] : speeds) {
    if (speed == 1) continue;
    int& pool = cluster.devices[at(device)].pool;
    const auto [found, is_new] =
        pools.try_emplace({pool, speed}, static_cast<int>(cluster.pools.size()));
    if (is_new) {
      NodePool copy = cluster.pools[at(pool)];
      copy.kind = scaled(copy.kind, speed);
      copy.kind.name = fmt::format("{} at {}", copy.kind.name, speed);
      cluster.pools.push_back(std::move(copy));
    }
    pool = found->second;
  }
  return cluster;
}

Cluster corrected(Cluster cluster,
                  const std::map<std::string, OpFactors>& kinds,
                  const std::map<std::string, LinkFactors>& networks) {
  for (NodePool& pool : cluster.pools)
    if (const auto found = kinds.find(pool.kind.name); found != kinds.end()) {
      const OpFactors& factors = found->second;
      for (auto& [dtype, rate] : pool.kind.sustained) rate /= factors.flops;
      pool.kind.memory_bandwidth /= factors.memory;
      pool.kind.launch_latency *= factors.memory;
    }
  for (Network& network : cluster.networks)
    if (const auto found = networks.find(network.name); found != networks.end()) {
      network.bandwidth *= found->second.bandwidth;
      if (network.trunk) *network.trunk *= found->second.bandwidth;
      network.latency += found->second.latency;
    }
  return cluster;
}

}  // namespace medley
