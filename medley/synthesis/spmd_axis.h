#pragma once

// One axis of a mesh in synthesis: lengths of the pieces of a factor, and costs of redistribution
// between placements. Devices that differ only in their place on this axis form a group. All groups
// redistribute simultaneously; those that share links delay each other. Knows nothing of the other
// axes.

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/plan/plan.h"
#include "medley/sharding/placement.h"

namespace medley {

// Shape of a value for one micro-batch: bytes per element and the sizes of all its factors in
// order.
struct FactoredShape {
  int64_t element_bytes = 0;
  std::vector<int64_t> sizes;
  double bytes() const;
  auto operator<=>(const FactoredShape&) const = default;
};

// Returns whether all shares are equal.
bool are_equal(const std::vector<double>& shares);

class SpmdAxis {
 public:
  // `groups`: of cluster devices, of equal sizes. Requires: `costs` outlives this.
  SpmdAxis(const CostModel& costs,
           std::vector<std::vector<int>> groups,
           std::vector<Part> parts,
           Microbatch microbatch);

  int size() const { return static_cast<int>(groups_[0].size()); }
  int num_groups() const { return static_cast<int>(groups_.size()); }

  struct Pieces {                  // pieces of a factor cut by a part
    std::vector<int64_t> lengths;  // [place on the axis]
    int64_t longest = 0;
  };
  const Pieces& pieces(int part, int64_t size);

  // Groups of equal device types on equal networks, which take equal time.
  using Identical = std::vector<int>;
  const std::vector<Identical>& identical() const { return identical_; }

  // Returns seconds of a redistribution (lower/redistribution_lowering.h) in group
  // `identical()[which]`: a collective and the local copies around it. `shape`: of the whole group.
  // Collectives are priced at a few sizes per type and parts, and interpolated.
  double price(size_t which,
               const FactoredShape& shape,
               const AxisPlacement& from,
               const AxisPlacement& to);

 private:
  struct Pattern {  // a collective with proportional lengths
    CommunicationKind kind = CommunicationKind::kAllReduce;
    int from = -1, to = -1;  // parts
    bool same = false;       // both cut the same factor
    auto operator<=>(const Pattern&) const = default;
  };
  static constexpr std::array<double, 5> kSizes{1 << 10, 1 << 16, 1 << 20, 1 << 25, 1LL << 31};
  using Curve = std::array<double, kSizes.size()>;  // seconds by bytes

  void find_identical();
  std::vector<double> shares_of(const Part& part) const;
  Collective collective_of(const Pattern& pattern, int group, double bytes) const;
  double contention(const Pattern& pattern, int group) const;
  const Curve& curve(size_t which, const Pattern& pattern);
  double collective(size_t which, const Pattern& pattern, double bytes);
  int part_index(std::string_view name) const;
  // Returns seconds for reading and writing `bytes` on the slowest device.
  double copy(size_t which, double bytes) const;
  double held_bytes(const FactoredShape& shape, const AxisPlacement& placement);

  const CostModel& costs_;
  std::vector<std::vector<int>> groups_;
  std::vector<Part> parts_;
  Microbatch microbatch_;
  std::vector<Identical> identical_;
  std::vector<std::vector<double>> shares_;           // [part][place], sum 1; empty: other axis
  std::vector<double> largest_shares_;                // [part]
  std::vector<double> slowest_memory_, launch_;       // [class of groups]
  std::map<std::pair<int, int64_t>, Pieces> pieces_;  // (part, size)
  std::map<std::pair<size_t, Pattern>, Curve> curves_;
};

}  // namespace medley
