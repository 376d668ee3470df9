#include "medley/planner/spmd_mesh.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>

#include "medley/base/error.h"
#include "medley/program/complete.h"

namespace medley {
namespace {

// Up to so many devices an all-to-all is priced with the lengths of every pair.
constexpr size_t kExactDevices = 64;

}  // namespace

bool are_equal(const std::vector<double>& shares) {
  return std::adjacent_find(shares.begin(), shares.end(), std::not_equal_to<>()) == shares.end();
}

double FactoredShape::bytes() const {
  double product = static_cast<double>(element_bytes);
  for (int64_t size : sizes) product *= static_cast<double>(size);
  return product;
}

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
  std::map<std::string, size_t> kinds;  // by name -> index into of_kind_
  for (int d = 0; d < num_devices(); ++d) {
    const auto [found, added] = kinds.try_emplace(kind(d).name, of_kind_.size());
    if (added) of_kind_.emplace_back();
    of_kind_[found->second].push_back(d);
    slowest_memory_ = std::min(slowest_memory_, kind(d).memory_bandwidth);
    launch_ = std::max(launch_, kind(d).launch_latency);
  }
  for (const Part& part : parts_) {
    shares_.push_back(shares_of(part));
    largest_shares_.push_back(*std::max_element(shares_.back().begin(), shares_.back().end()));
  }
}

const DeviceKind& SpmdMesh::kind(int device) const {
  return costs_.cluster().kind(devices_[static_cast<size_t>(device)]);
}

const SpmdMesh::Cut& SpmdMesh::cut(int part, int64_t size) {
  const auto [found, added] = cuts_.try_emplace({part, size});
  Cut& made = found->second;
  if (added) {
    made.lengths =
        part_lengths(parts_[static_cast<size_t>(part)], size, num_devices(), microbatch_);
    made.longest = *std::max_element(made.lengths.begin(), made.lengths.end());
    for (const Alike& devices : of_kind_) {
      std::map<int64_t, Alike> by_length;
      for (int device : devices)
        by_length[made.lengths[static_cast<size_t>(device)]].push_back(device);
      for (auto& [length, each] : by_length) made.alike.push_back(std::move(each));
    }
  }
  return made;
}

std::vector<double> SpmdMesh::shares_of(const Part& part) const {
  std::vector<double> result(devices_.size(), 1.0);
  if (part.name == kRows) result.assign(microbatch_.lengths.begin(), microbatch_.lengths.end());
  if (!part.lengths.empty()) result.assign(part.lengths.begin(), part.lengths.end());
  if (!part.shares.empty()) result = part.shares;
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& share : result) share /= sum;
  return result;
}

const SpmdMesh::Curve& SpmdMesh::curve(const Pattern& pattern) {
  const auto [found, added] = curves_.try_emplace(pattern);
  if (!added) return found->second;
  const auto shares = [&](int part) {
    return part < 0 ? std::vector<double>{} : shares_[static_cast<size_t>(part)];
  };
  const std::vector<double> from = shares(pattern.from), to = shares(pattern.to);
  std::vector<double> from_start, to_start;
  std::exclusive_scan(from.begin(), from.end(), std::back_inserter(from_start), 0.0);
  std::exclusive_scan(to.begin(), to.end(), std::back_inserter(to_start), 0.0);
  Collective collective{pattern.kind, devices_, {}, 1};
  for (size_t k = 0; k < kSizes.size(); ++k) {
    collective.lengths.clear();
    const auto add = [&](double share) {
      collective.lengths.push_back(static_cast<int64_t>(std::llround(share * kSizes[k])));
    };
    if (pattern.kind == CollectiveKind::kAllReduce) {
      add(1);
    } else if (pattern.kind == CollectiveKind::kAllToAll && from == to && are_equal(from)) {
      add(pattern.same ? 0 : from[0] * to[0]);
      collective.lengths.resize(devices_.size() * devices_.size(), collective.lengths[0]);
    } else if (pattern.kind == CollectiveKind::kAllToAll) {
      for (size_t i = 0; i < devices_.size(); ++i)
        for (size_t j = 0; j < devices_.size(); ++j) {
          const double common = std::min(from_start[i] + from[i], to_start[j] + to[j]) -
                                std::max(from_start[i], to_start[j]);
          add(pattern.same ? std::max(0.0, common) : from[i] * to[j]);
        }
    } else {
      for (double share : from) add(share);
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

double SpmdMesh::held_bytes(const FactoredShape& shape, const AxisState& state) {
  if (state.holding != Holding::kSharded) return shape.bytes();
  const int64_t size = shape.sizes[static_cast<size_t>(state.position)];
  return shape.bytes() / static_cast<double>(std::max<int64_t>(size, 1)) *
         static_cast<double>(cut(state.part, size).longest);
}

double SpmdMesh::scarce_bytes(const FactoredShape& shape, const AxisState& state) {
  if (state.holding != Holding::kSharded) return shape.bytes();
  const auto memory = [&](int device) {
    return costs_.cluster().kind(devices_[static_cast<size_t>(device)]).memory_bytes;
  };
  double least = memory(0);
  for (const Alike& devices : of_kind_) least = std::min(least, memory(devices[0]));
  const int64_t size = shape.sizes[static_cast<size_t>(state.position)];
  const Cut& by = cut(state.part, size);
  double most = 0;
  for (const Alike& devices : by.alike)
    most = std::max(most,
                    static_cast<double>(by.lengths[static_cast<size_t>(devices[0])]) * least /
                        std::max(memory(devices[0]), 1.0));
  return shape.bytes() / static_cast<double>(std::max<int64_t>(size, 1)) * most;
}

Ticks SpmdMesh::conversion(const FactoredShape& shape, const AxisState& from, const AxisState& to) {
  if (from == to || devices_.size() == 1) return 0;
  return static_cast<Ticks>(std::llround(price(shape, from, to) * kTicksPerSecond));
}

double SpmdMesh::price(const FactoredShape& shape, const AxisState& from, const AxisState& to) {
  const double whole = shape.bytes();
  const auto held = [&](const AxisState& state) { return held_bytes(shape, state); };
  // Lengths in whole elements differ from the shares: 12 heads on 8 devices.
  const auto rounded = [&](const AxisState& state) {
    return held(state) / largest_shares_[static_cast<size_t>(state.part)];
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
  if (sums)  // a reduce-scatter, which is an all-gather backwards
    return collective({CollectiveKind::kAllGather, to.part, -1, false}, rounded(to)) +
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
