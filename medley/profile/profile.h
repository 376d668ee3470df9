#pragma once

// What was measured on real (or emulated) devices: times of ops by kind of device and shape, of
// collectives by algorithm and size, and how much overlapping costs. Stored as JSON
// (docs/formats/profile.md). Knows nothing of how it was measured, nor of who asks.

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/profile/sized_op.h"

namespace medley {

struct OpMeasurement {
  std::string kind;  // of device
  SizedOp op;
  Nanoseconds time;  // median
  int repetitions = 1;
  bool operator==(const OpMeasurement&) const = default;
};

struct CollectiveMeasurement {
  std::string collective;            // "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
  std::string algorithm;             // of network/collectives.h, or "backend": whatever it does
  std::vector<std::string> devices;  // of the cluster
  std::vector<int64_t> lengths;      // bytes, as in Collective::lengths
  Nanoseconds time;
  bool operator==(const CollectiveMeasurement&) const = default;
};

// While a device communicates, its ops take `slowdown` times as long (>= 1).
struct OverlapMeasurement {
  std::string kind;
  double slowdown = 1;
  bool operator==(const OverlapMeasurement&) const = default;
};

// The members that tell measurements apart.
inline auto key(const OpMeasurement& each) { return std::tie(each.kind, each.op.key); }
inline auto key(const CollectiveMeasurement& each) {
  return std::tie(each.collective, each.algorithm, each.devices, each.lengths);
}
inline auto key(const OverlapMeasurement& each) { return std::tie(each.kind); }

struct Profile {
  std::string executor;            // and its version: "aten 2.13.0", "emulated seed 7"
  std::vector<OpMeasurement> ops;  // sorted by kind, key; each pair once
  std::vector<CollectiveMeasurement> collectives;  // sorted by all but the time; each once
  std::vector<OverlapMeasurement> overlaps;        // sorted by kind; each once
  bool operator==(const Profile&) const = default;
};

// What is printed parses back equal. Requires: what parse_profile() demands.
std::string print(const Profile& profile);
// Strict, but in any order. Throws Error(kCaller) "<file>: <place>: found ..., expected ...":
// another version, times that are not positive, unknown keys, a measurement twice.
Profile parse_profile(std::string_view json, std::string_view file);
// Later measurements replace earlier ones of the same key. Throws Error(kCaller) if the executors
// differ; one without a name (of a fresh Profile) fits any.
Profile merge(const Profile& earlier, const Profile& later);
// Throws Error(kCaller) if the profile has no op time for a kind of device of the cluster (a
// profile of other devices).
void verify(const Profile& profile, const Cluster& cluster);

}  // namespace medley
