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

}  // namespace medley
