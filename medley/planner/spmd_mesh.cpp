#include "medley/planner/spmd_mesh.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "medley/base/error.h"
#include "medley/program/complete.h"

namespace medley {
namespace {

// Up to so many devices an all-to-all is priced with the lengths of every pair.
constexpr size_t kExactDevices = 64;

}  // namespace

SpmdMesh::SpmdMesh(const CostModel& costs,
                   std::vector<int> devices,
                   std::vector<Part> parts,
                   Microbatch microbatch)
    : costs_(costs),
      devices_(std::move(devices)),
      parts_(std::move(parts)),
      microbatch_(std::move(microbatch)) {
  MEDLEY_CHECK(!devices_.empty());
  slowest_memory_ = kind(0).memory_bandwidth;
  for (int d = 0; d < num_devices(); ++d) {
    slowest_memory_ = std::min(slowest_memory_, kind(d).memory_bandwidth);
    launch_ = std::max(launch_, kind(d).launch_latency);
  }
}

const DeviceKind& SpmdMesh::kind(int device) const {
  return costs_.cluster().kind(devices_[static_cast<size_t>(device)]);
}

const std::vector<int64_t>& SpmdMesh::lengths(int part, int64_t size) {
  const auto [found, added] = lengths_.try_emplace({part, size});
  if (added)
    found->second =
        part_lengths(parts_[static_cast<size_t>(part)], size, num_devices(), microbatch_);
  return found->second;
}

std::vector<double> SpmdMesh::shares(int part) const {
  const Part& chosen = parts_[static_cast<size_t>(part)];
  std::vector<double> result(devices_.size(), 1.0);
  if (chosen.name == kRows) result.assign(microbatch_.lengths.begin(), microbatch_.lengths.end());
  if (!chosen.lengths.empty()) result.assign(chosen.lengths.begin(), chosen.lengths.end());
  if (!chosen.shares.empty()) result = chosen.shares;
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& share : result) share /= sum;
  return result;
}

const SpmdMesh::Curve& SpmdMesh::curve(const Pattern& pattern) {
  const auto [found, added] = curves_.try_emplace(pattern);
  if (!added) return found->second;
  const std::vector<double> from = pattern.from < 0 ? std::vector<double>{} : shares(pattern.from);
  const std::vector<double> to = pattern.to < 0 ? std::vector<double>{} : shares(pattern.to);
  std::vector<double> from_start, to_start;
  std::exclusive_scan(from.begin(), from.end(), std::back_inserter(from_start), 0.0);
  std::exclusive_scan(to.begin(), to.end(), std::back_inserter(to_start), 0.0);
  for (size_t k = 0; k < kSizes.size(); ++k) {
    Collective collective{pattern.kind, devices_, {}, 1};
    const auto add = [&](double share) {
      collective.lengths.push_back(static_cast<int64_t>(std::llround(share * kSizes[k])));
    };
    if (pattern.kind == CollectiveKind::kAllReduce) {
      add(1);
    } else if (pattern.kind == CollectiveKind::kAllToAll) {
      for (size_t i = 0; i < devices_.size(); ++i)
        for (size_t j = 0; j < devices_.size(); ++j) {
          const double common = std::min(from_start[i] + from[i], to_start[j] + to[j]) -
                                std::max(from_start[i], to_start[j]);
          add(pattern.same ? std::max(0.0, common) : from[i] * to[j]);
        }
    } else {
      for (double share : pattern.from >= 0 ? from : to) add(share);
    }
    found->second[k] = to_seconds(costs_.collective(collective).value).value;
  }
  return found->second;
}

double SpmdMesh::collective(const Pattern& pattern, double bytes) {
  const Curve& seconds = curve(pattern);
  size_t k = 1;
  while (k + 1 < kSizes.size() && kSizes[k] < bytes) ++k;
  const double along = (bytes - kSizes[k - 1]) / (kSizes[k] - kSizes[k - 1]);
  return std::max(0.0, seconds[k - 1] + along * (seconds[k] - seconds[k - 1]));
}

int SpmdMesh::part_index(std::string_view name) const {
  for (size_t part = 0; part < parts_.size(); ++part)
    if (parts_[part].name == name) return static_cast<int>(part);
  MEDLEY_CHECK(!"a part of that name");
  return -1;
}

double SpmdMesh::copy(double bytes) const { return launch_ + 2 * bytes / slowest_memory_; }

double SpmdMesh::largest_share(int part, int64_t size) {
  const std::vector<int64_t>& all = lengths(part, size);
  return static_cast<double>(*std::max_element(all.begin(), all.end())) /
         static_cast<double>(std::max<int64_t>(size, 1));
}

Ticks SpmdMesh::conversion(const FactoredShape& shape, const AxisState& from, const AxisState& to) {
  if (from == to || devices_.size() == 1) return 0;
  return static_cast<Ticks>(std::llround(price(shape, from, to) * kTicksPerSecond));
}

double SpmdMesh::price(const FactoredShape& shape, const AxisState& from, const AxisState& to) {
  double whole = static_cast<double>(shape.element_bytes);
  for (int64_t size : shape.sizes) whole *= static_cast<double>(size);
  const auto size_at = [&](const AxisState& state) {
    return shape.sizes[static_cast<size_t>(state.position)];
  };
  const auto held = [&](const AxisState& state) {  // by the device that has most
    return state.holding == Holding::kSharded ? whole * largest_share(state.part, size_at(state))
                                              : whole;
  };
  // Lengths in whole elements differ from the shares: 12 heads on 8 devices.
  const auto rounded = [&](const AxisState& state) {
    const std::vector<double> exact = shares(state.part);
    return whole * largest_share(state.part, size_at(state)) /
           *std::max_element(exact.begin(), exact.end());
  };
  const bool sums = from.holding == Holding::kPartialSum || from.holding == Holding::kPartialMax;
  if (to.holding == Holding::kPartialMax) return from.holding == Holding::kReplicated ? 0 : 1e3;
  if (from.holding == Holding::kReplicated)
    return copy(to.holding == Holding::kPartialSum ? whole : held(to));
  if (from.holding == Holding::kPartialMax && to.holding != Holding::kReplicated)
    return collective({CollectiveKind::kAllReduce, -1, -1, false}, whole) + copy(whole);
  if (from.holding == Holding::kSharded && to.holding == Holding::kPartialSum) return copy(whole);
  if (sums && to.holding == Holding::kReplicated)
    return collective({CollectiveKind::kAllReduce, -1, -1, false}, whole);
  if (sums)
    return collective({CollectiveKind::kReduceScatter, -1, to.part, false}, rounded(to)) +
           (to.position > 0 ? copy(whole) : 0);
  if (to.holding == Holding::kReplicated)
    return collective({CollectiveKind::kAllGather, from.part, -1, false}, rounded(from)) +
           (from.position > 0 ? copy(whole) : 0);
  const bool same = from.position == to.position;
  if (devices_.size() > kExactDevices) {
    // As if all had as much as the one that has most: a matrix of lengths per pair of parts would
    // be too much to price.
    const int even = part_index(kEven);
    const double most = std::max(held(from), held(to)) * static_cast<double>(devices_.size());
    return collective({CollectiveKind::kAllToAll, even, even, same}, most) + copy(held(from)) +
           copy(held(to));
  }
  const double moved = std::max(rounded(from), rounded(to));
  return collective({CollectiveKind::kAllToAll, from.part, to.part, same}, moved) +
         copy(held(from)) + copy(held(to));
}

}  // namespace medley
