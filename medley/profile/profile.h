#pragma once

// Measurements on real or emulated devices: times of ops by device type and shape, of collectives
// by algorithm and size, and the cost of overlap. Stored as JSON (docs/formats/profile.md). Knows
// nothing of how they were measured or are used.

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
  std::string kind;  // device type
  SizedOp op;
  Nanoseconds time;  // median
  int repetitions = 1;
  bool operator==(const OpMeasurement&) const = default;
};

struct CollectiveMeasurement {
  std::string collective;            // "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
  std::string algorithm;             // in network/collectives.h, or "backend": the library's
  std::vector<std::string> devices;  // in the cluster
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

// Return the members that identify a measurement.
inline auto key(const OpMeasurement& each) { return std::tie(each.kind, each.op.key); }
inline auto key(const CollectiveMeasurement& each) {
  return std::tie(each.collective, each.algorithm, each.devices, each.lengths);
}
inline auto key(const OverlapMeasurement& each) { return std::tie(each.kind); }

struct Profile {
  std::string executor;            // and its version: "aten 2.13.0", "emulated seed 7"
  std::vector<OpMeasurement> ops;  // unique, sorted by kind, key
  std::vector<CollectiveMeasurement> collectives;  // unique, sorted by all but the time
  std::vector<OverlapMeasurement> overlaps;        // unique, sorted by kind
  bool operator==(const Profile&) const = default;
};

// Prints a form that parses back equal. Requires: the conditions of parse_profile().
std::string print(const Profile& profile);
// Accepts entries in any order. Throws Error(kCaller) "<file>: <place>: found ..., expected ..."
// for another version, times that are not positive, unknown keys, a measurement twice.
Profile parse_profile(std::string_view json, std::string_view file);
// Returns both, with later measurements replacing earlier ones of the same key. Throws
// Error(kCaller) if the executors differ; an empty name fits any.
Profile merge(const Profile& earlier, const Profile& later);
// Throws Error(kCaller) if the profile lacks op times for a device type of the cluster.
void verify(const Profile& profile, const Cluster& cluster);

}  // namespace medley
