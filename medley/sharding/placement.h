#pragma once

// Placement of a value on the devices of a mesh: one AxisPlacement per axis. Positions are factors,
// not labels: two dims of one extent are distinct.

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace medley {

enum class Holding : uint8_t { kReplicated, kPartialSum, kPartialMax, kSharded };

struct AxisPlacement {
  Holding holding = Holding::kReplicated;
  int position = -1;  // cut factor, over all factors of the value
  int part = -1;      // index into the plan's parts
  bool cuts(int factor) const { return holding == Holding::kSharded && position == factor; }
  auto operator<=>(const AxisPlacement&) const = default;
};

// One entry per axis of the mesh, at most two, stored in place: lowering creates very many.
class Placement {
 public:
  static constexpr size_t kMostAxes = 2;
  Placement() = default;
  explicit Placement(size_t axes, const AxisPlacement& each = {}) : size_(axes) {
    axes_.fill(each);
  }
  Placement(std::initializer_list<AxisPlacement> axes) : size_(axes.size()) {
    std::copy(axes.begin(), axes.end(), axes_.begin());
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void push_back(const AxisPlacement& axis) { axes_.at(size_++) = axis; }
  const AxisPlacement& operator[](size_t axis) const { return axes_[axis]; }
  AxisPlacement& operator[](size_t axis) { return axes_[axis]; }
  const AxisPlacement* begin() const { return axes_.data(); }
  const AxisPlacement* end() const { return axes_.data() + size_; }
  AxisPlacement* begin() { return axes_.data(); }
  AxisPlacement* end() { return axes_.data() + size_; }
  // Entries after the last axis keep their initial value.
  bool operator==(const Placement& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  std::strong_ordering operator<=>(const Placement& other) const {
    return std::lexicographical_compare_three_way(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<AxisPlacement, kMostAxes> axes_;
  size_t size_ = 0;
};

inline AxisPlacement replicated() { return {}; }
inline AxisPlacement partial_sum() { return {Holding::kPartialSum, -1, -1}; }
inline AxisPlacement sharded(int position, int part) { return {Holding::kSharded, position, part}; }

}  // namespace medley
