#include "medley/profile/profile.h"

#include <fmt/format.h>

#include <set>

#include "medley/base/error.h"

namespace medley {

void verify(const Profile& profile, const Cluster& cluster) {
  std::set<std::string> measured;
  for (const OpMeasurement& each : profile.ops) measured.insert(each.kind);
  for (const NodePool& pool : cluster.pools)
    if (!measured.contains(pool.kind.name))
      throw Error(
          Blame::kCaller,
          fmt::format("profile: has no op times of: {} (nodes: {})", pool.kind.name, pool.name));
}

}  // namespace medley
