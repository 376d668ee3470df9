#include "medley/synthesis/spmd_axis.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/lower/complete.h"
#include "medley/network/estimate.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

// Up to this number of devices an all-to-all is priced with the lengths of every pair.
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

SpmdAxis::SpmdAxis(const CostModel& costs,
                   std::vector<std::vector<int>> groups,
                   std::vector<Part> parts,
                   Microbatch microbatch)
    : costs_(costs),
      groups_(std::move(groups)),
      parts_(std::move(parts)),
      microbatch_(std::move(microbatch)) {
  MEDLEY_CHECK(!groups_.empty() && !groups_[0].empty());
  find_identical();
  for (const Part& part : parts_) {
    shares_.push_back(shares_of(part));
    largest_shares_.push_back(
        shares_.back().empty() ? 0
                               : *std::max_element(shares_.back().begin(), shares_.back().end()));
  }
}

void SpmdAxis::find_identical() {
  std::map<std::vector<int>, size_t> known;
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int> key;
    for (const int device : groups_[g]) key.push_back(costs_.cluster().devices[at(device)].pool);
    for (const int device : groups_[g]) {
      const auto first = std::find_if(groups_[g].begin(), groups_[g].end(), [&](int other) {
        return costs_.topology().node(other) == costs_.topology().node(device);
      });
      key.push_back(static_cast<int>(first - groups_[g].begin()));
    }
    const auto [found, added] = known.try_emplace(std::move(key), identical_.size());
    if (added) identical_.emplace_back();
    identical_[found->second].push_back(static_cast<int>(g));
  }
  for (const Identical& groups : identical_) {
    const std::vector<int>& devices = groups_[at(groups[0])];
    slowest_memory_.push_back(costs_.cluster().kind(devices[0]).memory_bandwidth);
    launch_.push_back(0);
    for (const int device : devices) {
      const DeviceKind& kind = costs_.cluster().kind(device);
      slowest_memory_.back() = std::min(slowest_memory_.back(), kind.memory_bandwidth);
      launch_.back() = std::max(launch_.back(), kind.launch_latency);
    }
  }
}

const SpmdAxis::Pieces& SpmdAxis::pieces(int part, int64_t size) {
  const auto [found, added] = pieces_.try_emplace({part, size});
  Pieces& made = found->second;
  if (added) {
    made.lengths = part_lengths(parts_[at(part)], size, this->size(), microbatch_);
    made.longest = *std::max_element(made.lengths.begin(), made.lengths.end());
  }
  return made;
}

// Returns an empty vector for a part of another axis.
std::vector<double> SpmdAxis::shares_of(const Part& part) const {
  std::vector<double> result(groups_[0].size(), 1.0);
  if (part.name == kRows) result.assign(microbatch_.lengths.begin(), microbatch_.lengths.end());
  if (!part.lengths.empty()) result.assign(part.lengths.begin(), part.lengths.end());
  if (!part.shares.empty()) result = part.shares;
  if (result.size() != groups_[0].size()) return {};
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& share : result) share /= sum;
  return result;
}

Collective SpmdAxis::collective_of(const Pattern& pattern, int group, double bytes) const {
  const auto shares = [&](int part) {
    return part < 0 ? std::vector<double>{} : shares_[at(part)];
  };
  const std::vector<double> from = shares(pattern.from), to = shares(pattern.to);
  Collective collective{pattern.kind, groups_[at(group)], {}, 1};
  const size_t count = collective.devices.size();
  const auto add = [&](double share) {
    collective.lengths.push_back(static_cast<int64_t>(std::llround(share * bytes)));
  };
  if (pattern.kind == CommunicationKind::kAllReduce) {
    add(1);
  } else if (pattern.kind == CommunicationKind::kAllToAll && from == to && are_equal(from)) {
    add(pattern.same ? 0 : from[0] * to[0]);
    collective.lengths.resize(count * count, collective.lengths[0]);
  } else if (pattern.kind == CommunicationKind::kAllToAll) {
    std::vector<double> from_start, to_start;
    std::exclusive_scan(from.begin(), from.end(), std::back_inserter(from_start), 0.0);
    std::exclusive_scan(to.begin(), to.end(), std::back_inserter(to_start), 0.0);
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < count; ++j) {
        const double common = std::min(from_start[i] + from[i], to_start[j] + to[j]) -
                              std::max(from_start[i], to_start[j]);
        add(pattern.same ? std::max(0.0, common) : from[i] * to[j]);
      }
  } else {
    for (double share : from) add(share);
  }
  return collective;
}

// Returns the load factor of the fullest link of a group if all groups communicate.
double SpmdAxis::contention(const Pattern& pattern, int group) const {
  if (groups_.size() == 1) return 1;
  const Topology& topology = costs_.topology();
  const auto loads = [&](int of) {
    const Collective collective = collective_of(pattern, of, kLongBytes);
    const CheapestEstimate best = cheapest_estimate(collective, topology);
    return best.algorithm ? traffic(*best.algorithm, collective, topology)
                          : std::vector<int64_t>(topology.links().size(), 0);
  };
  const std::vector<int64_t> own = loads(group);
  std::vector<int64_t> all(own.size(), 0);
  for (int other = 0; other < num_groups(); ++other) {
    const std::vector<int64_t> more = other == group ? own : loads(other);
    for (size_t l = 0; l < all.size(); ++l) all[l] += more[l];
  }
  double alone = 0, together = 0;
  for (size_t l = 0; l < own.size(); ++l) {
    if (own[l] == 0) continue;
    const double bandwidth = topology.links()[l].bandwidth.value;
    alone = std::max(alone, static_cast<double>(own[l]) / bandwidth);
    together = std::max(together, static_cast<double>(all[l]) / bandwidth);
  }
  return alone == 0 ? 1 : together / alone;
}

const SpmdAxis::Curve& SpmdAxis::curve(size_t which, const Pattern& pattern) {
  const auto [found, added] = curves_.try_emplace({which, pattern});
  if (!added) return found->second;
  const int group = identical_[which][0];
  const double times = contention(pattern, group);
  for (size_t k = 0; k < kSizes.size(); ++k)
    found->second[k] =
        to_seconds(costs_.collective(collective_of(pattern, group, kSizes[k] * times)).value).value;
  return found->second;
}

double SpmdAxis::collective(size_t which, const Pattern& pattern, double bytes) {
  const Curve& seconds = curve(which, pattern);
  size_t k = 1;
  while (k + 1 < kSizes.size() && kSizes[k] < bytes) ++k;
  const double along = (bytes - kSizes[k - 1]) / (kSizes[k] - kSizes[k - 1]);
  return std::max(0.0, seconds[k - 1] + along * (seconds[k] - seconds[k - 1]));
}

int SpmdAxis::part_index(std::string_view name) const {
  for (size_t part = 0; part < parts_.size(); ++part)
    if (parts_[part].name == name) return static_cast<int>(part);
  MEDLEY_CHECK(!"a part of that name");
  return -1;
}

double SpmdAxis::copy(size_t which, double bytes) const {
  return launch_[which] + 2 * bytes / slowest_memory_[which];
}

double SpmdAxis::held_bytes(const FactoredShape& shape, const AxisPlacement& placement) {
  if (placement.holding != Holding::kSharded) return shape.bytes();
  const int64_t size = shape.sizes[at(placement.position)];
  return shape.bytes() / static_cast<double>(std::max<int64_t>(size, 1)) *
         static_cast<double>(pieces(placement.part, size).longest);
}

double SpmdAxis::price(size_t which,
                       const FactoredShape& shape,
                       const AxisPlacement& from,
                       const AxisPlacement& to) {
  const double whole = shape.bytes();
  const auto held = [&](const AxisPlacement& placement) { return held_bytes(shape, placement); };
  // Lengths in whole elements differ from the shares: 12 heads on 8 devices.
  const auto rounded = [&](const AxisPlacement& placement) {
    return held(placement) / largest_shares_[at(placement.part)];
  };
  const bool sums = from.holding == Holding::kPartialSum || from.holding == Holding::kPartialMax;
  if (to.holding == Holding::kPartialMax) return from.holding == Holding::kReplicated ? 0 : 1e3;
  if (from.holding == Holding::kReplicated)
    return copy(which, to.holding == Holding::kPartialSum ? whole : held(to));
  if (from.holding == Holding::kPartialMax && to.holding != Holding::kReplicated)
    return collective(which, {CommunicationKind::kAllReduce, -1, -1, false}, whole) +
           copy(which, whole);
  if (from.holding == Holding::kSharded && to.holding == Holding::kPartialSum)
    return copy(which, whole);
  if (sums && to.holding == Holding::kReplicated)
    return collective(which, {CommunicationKind::kAllReduce, -1, -1, false}, whole);
  if (sums)  // a reduce-scatter is a reversed all-gather
    return collective(which, {CommunicationKind::kAllGather, to.part, -1, false}, rounded(to)) +
           (to.position > 0 ? copy(which, whole) : 0);
  if (to.holding == Holding::kReplicated)
    return collective(which, {CommunicationKind::kAllGather, from.part, -1, false}, rounded(from)) +
           (from.position > 0 ? copy(which, whole) : 0);
  const bool same = from.position == to.position;
  if (groups_[0].size() > kExactDevices) {
    // Assumes the largest amount everywhere: pricing a matrix of lengths per pair of parts is too
    // expensive.
    const int even = part_index(kEven);
    const double most = std::max(held(from), held(to)) * static_cast<double>(size());
    return collective(which, {CommunicationKind::kAllToAll, even, even, same}, most) +
           copy(which, held(from)) + copy(which, held(to));
  }
  const double moved = std::max(rounded(from), rounded(to));
  return collective(which, {CommunicationKind::kAllToAll, from.part, to.part, same}, moved) +
         copy(which, held(from)) + copy(which, held(to));
}

}  // namespace medley
