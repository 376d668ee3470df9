#include "medley/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "medley/base/error.h"

namespace medley {
namespace {

// set_union takes common elements from its first range.
template <typename Measurement>
std::vector<Measurement> merged(const std::vector<Measurement>& earlier,
                                const std::vector<Measurement>& later) {
  std::vector<Measurement> all;
  std::set_union(later.begin(),
                 later.end(),
                 earlier.begin(),
                 earlier.end(),
                 std::back_inserter(all),
                 [](const Measurement& a, const Measurement& b) { return key(a) < key(b); });
  return all;
}

bool is_among(const CollectiveMeasurement& measurement, const Cluster& cluster) {
  return std::ranges::all_of(measurement.devices, [&](const std::string& name) {
    return find_device(cluster, name).has_value();
  });
}

}  // namespace

Profile merge(const Profile& earlier, const Profile& later) {
  if (earlier.executor != later.executor && !earlier.executor.empty() && !later.executor.empty())
    throw Error(Blame::kCaller,
                fmt::format("profile: found measurements of executor \"{}\", expected those of "
                            "\"{}\": times of different executors do not mix",
                            later.executor,
                            earlier.executor));
  return {later.executor.empty() ? earlier.executor : later.executor,
          merged(earlier.ops, later.ops),
          merged(earlier.collectives, later.collectives),
          merged(earlier.overlaps, later.overlaps)};
}

void verify(const Profile& profile, const Cluster& cluster) {
  if (profile.ops.empty() && std::ranges::any_of(profile.collectives, [&](const auto& each) {
        return is_among(each, cluster);
      }))
    return;
  std::set<std::string> measured;
  for (const OpMeasurement& each : profile.ops) measured.insert(each.kind);
  for (const NodePool& pool : cluster.pools)
    if (!measured.contains(pool.kind.name))
      throw Error(
          Blame::kCaller,
          fmt::format("profile: found op times of {}, expected those of {} (nodes: {}) too",
                      measured.empty() ? "no device" : fmt::format("{}", fmt::join(measured, ", ")),
                      pool.kind.name,
                      pool.name));
}

}  // namespace medley
