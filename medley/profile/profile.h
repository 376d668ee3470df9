#pragma once

// What was measured on real (or emulated) devices: times of ops by kind of device and shape, of
// collectives by algorithm and size, and how much overlapping costs. Stored as JSON
// (docs/formats/profile.md). Knows nothing of how it was measured, nor of who asks.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// One op at concrete sizes: what is measured once, however many layers repeat it.
struct SizedOp {
  std::string
      key;         // "aten.mm.default(f32[96,512], f32[512,64]) -> f32[96,64]", attributes included
  std::string op;  // "aten.mm.default"
  WorkClass work_class = WorkClass::kMemory;
  DType dtype = DType::kF32;  // of the arithmetic
  Work work;
  bool operator==(const SizedOp&) const = default;
};
// `symbols`: the values of the graph's symbols. Sizes among the attributes of layout ops (shapes,
// offsets) are left out of the key.
SizedOp sized_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

struct OpMeasurement {
  std::string kind;  // of device
  SizedOp op;
  Nanoseconds time;  // median
  int repetitions = 0;
  bool operator==(const OpMeasurement&) const = default;
};

struct CollectiveMeasurement {
  std::string collective;            // "all_reduce", "all_gather", "reduce_scatter", "all_to_all"
  std::string algorithm;             // "ring", ..., or "backend": whatever the transport does
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

struct Profile {
  std::string executor;            // and its version: "aten 2.13.0", "emulated seed 7"
  std::vector<OpMeasurement> ops;  // sorted by kind, key
  std::vector<CollectiveMeasurement> collectives;  // sorted
  std::vector<OverlapMeasurement> overlaps;        // sorted by kind
  bool operator==(const Profile&) const = default;
};

// What is printed parses back equal.
std::string print(const Profile& profile);
// Strict. Throws Error(kCaller) "<file>: <place>: found ..., expected ...": another version, times
// that are not positive, keys twice.
Profile parse_profile(std::string_view json, std::string_view file);
// Later measurements replace earlier ones of the same key. Throws Error(kCaller) if the executors
// differ.
Profile merge(const Profile& earlier, const Profile& later);
// Throws Error(kCaller) if the profile has no op time for a kind of device of the cluster (a
// profile of other devices).
void verify(const Profile& profile, const Cluster& cluster);

}  // namespace medley
