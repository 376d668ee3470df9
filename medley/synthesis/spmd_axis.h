#pragma once

// What synthesis knows of one axis of a mesh: how long the pieces are into which the parts of a
// plan divide a factor, and what it costs to bring a value from one state to another on it. The
// devices that differ in their place on this axis only are a group; all groups convert at the same
// time, and those that share links wait for each other. Knows nothing of the other axes.

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/plan/plan.h"
#include "medley/sharding/state.h"

namespace medley {

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

class SpmdAxis {
 public:
  // `groups`: of devices of the cluster, all of the same size. Requires: `costs` outlives this.
  SpmdAxis(const CostModel& costs,
           std::vector<std::vector<int>> groups,
           std::vector<Part> parts,
           Microbatch microbatch);

  int size() const { return static_cast<int>(groups_[0].size()); }
  int num_groups() const { return static_cast<int>(groups_.size()); }

  struct Pieces {                  // of a factor cut by a part
    std::vector<int64_t> lengths;  // [place on the axis]
    int64_t longest = 0;
  };
  const Pieces& pieces(int part, int64_t size);

  // Groups of the same kinds of devices on the same networks take the same time.
  using Alike = std::vector<int>;
  const std::vector<Alike>& alike() const { return alike_; }

  // Seconds of what the lowering puts in between (lower/redistribution.h) in a group of
  // alike()[which]: a collective and the local copies around it. `shape`: of what a group has
  // together. Collectives are priced at a few sizes per kind and parts, and interpolated.
  double price(size_t which,
               const FactoredShape& shape,
               const AxisState& from,
               const AxisState& to);

 private:
  struct Pattern {  // of a collective whose lengths grow in proportion
    CommunicationKind kind = CommunicationKind::kAllReduce;
    int from = -1, to = -1;  // parts
    bool same = false;       // both cut the same factor
    auto operator<=>(const Pattern&) const = default;
  };
  static constexpr std::array<double, 5> kSizes{1 << 10, 1 << 16, 1 << 20, 1 << 25, 1LL << 31};
  using Curve = std::array<double, kSizes.size()>;  // seconds at so many bytes of the whole

  void find_alike();
  std::vector<double> shares_of(const Part& part) const;
  Collective collective_of(const Pattern& pattern, int group, double bytes) const;
  double contention(const Pattern& pattern, int group) const;
  const Curve& curve(size_t which, const Pattern& pattern);
  double collective(size_t which, const Pattern& pattern, double bytes);
  int part_index(std::string_view name) const;
  // Seconds for reading and writing so many on the slowest device.
  double copy(size_t which, double bytes) const;
  double held_bytes(const FactoredShape& shape, const AxisState& state);

  const CostModel& costs_;
  std::vector<std::vector<int>> groups_;
  std::vector<Part> parts_;
  Microbatch microbatch_;
  std::vector<Alike> alike_;
  std::vector<std::vector<double>> shares_;      // [part][place], adding up to 1; empty: not for it
  std::vector<double> largest_shares_;           // [part]
  std::vector<double> slowest_memory_, launch_;  // [alike]
  std::map<std::pair<int, int64_t>, Pieces> pieces_;  // (part, size)
  std::map<std::pair<size_t, Pattern>, Curve> curves_;
};

}  // namespace medley
