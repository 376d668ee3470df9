#pragma once

// What synthesis knows of the devices of one axis: how long the pieces are into which the parts of
// a plan divide a factor, and what it costs to bring a value from one state to another.

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/plan/plan.h"
#include "medley/sharding/state.h"

namespace medley {

// Times in synthesis are integers, so that equal ops have bitwise equal costs: tenths of a
// nanosecond, of which kForbidden (pbqp.h) is more than a day.
using Ticks = int64_t;
inline constexpr int64_t kTicksPerNanosecond = 10;
inline constexpr double kTicksPerSecond = 1e10;

// A value without its numbers: bytes per element and the sizes of all its factors in order, for one
// micro-batch.
struct FactoredShape {
  int64_t element_bytes = 0;
  std::vector<int64_t> sizes;
  double bytes() const;
  auto operator<=>(const FactoredShape&) const = default;
};

// Whether all devices have the same.
bool are_equal(const std::vector<double>& shares);

class SpmdMesh {
 public:
  // `parts` as of parts_of() (program/complete.h). Requires: `costs` outlives this.
  SpmdMesh(const CostModel& costs,
           std::vector<int> devices,
           std::vector<Part> parts,
           Microbatch microbatch);

  const CostModel& costs() const { return costs_; }
  const std::vector<int>& devices() const { return devices_; }
  const std::vector<Part>& parts() const { return parts_; }
  const Microbatch& microbatch() const { return microbatch_; }
  int num_devices() const { return static_cast<int>(devices_.size()); }
  const DeviceKind& kind(int device) const;  // of devices()

  // Elements of a factor of this size on each device.
  const std::vector<int64_t>& lengths(int part, int64_t size) { return cut(part, size).lengths; }
  // The devices of one kind and length are alike: one of them tells what all of them take. For a
  // factor of this size, or by kind alone.
  using Alike = std::vector<int>;
  const std::vector<Alike>& alike(int part, int64_t size) { return cut(part, size).alike; }
  const std::vector<Alike>& alike() const { return of_kind_; }

  // What the device holds that has most.
  double held_bytes(const FactoredShape& shape, const AxisState& state);
  // The same of the device on which they weigh most, one of twice the least memory counting half.
  double scarce_bytes(const FactoredShape& shape, const AxisState& state);

  // The time of what the lowering puts in between (program/emitter.h): a collective and the local
  // copies around it. Collectives are priced at a few sizes per kind and parts, and interpolated.
  Ticks conversion(const FactoredShape& shape, const AxisState& from, const AxisState& to);

 private:
  struct Pattern {  // of a collective whose lengths grow in proportion
    CollectiveKind kind = CollectiveKind::kAllReduce;
    int from = -1, to = -1;  // parts
    bool same = false;       // both cut the same factor
    auto operator<=>(const Pattern&) const = default;
  };
  static constexpr std::array<double, 5> kSizes{1 << 10, 1 << 16, 1 << 20, 1 << 25, 1LL << 31};
  using Curve = std::array<double, kSizes.size()>;  // seconds at so many bytes of the whole

  struct Cut {                     // of a factor by a part
    std::vector<int64_t> lengths;  // [device]
    int64_t longest = 0;
    std::vector<Alike> alike;
  };
  const Cut& cut(int part, int64_t size);
  std::vector<double> shares_of(const Part& part) const;
  const Curve& curve(const Pattern& pattern);
  double collective(const Pattern& pattern, double bytes);
  int part_index(std::string_view name) const;
  double copy(double bytes) const;  // seconds for reading and writing so many on the slowest device
  double price(const FactoredShape& shape, const AxisState& from, const AxisState& to);

  const CostModel& costs_;
  std::vector<int> devices_;
  std::vector<Part> parts_;
  Microbatch microbatch_;
  std::vector<Alike> of_kind_;
  std::vector<std::vector<double>> shares_;  // [part][device], adding up to 1
  std::vector<double> largest_shares_;       // [part]
  double slowest_memory_ = 0, launch_ = 0;
  std::map<std::pair<int, int64_t>, Cut> cuts_;  // (part, size)
  std::map<Pattern, Curve> curves_;
};

}  // namespace medley
