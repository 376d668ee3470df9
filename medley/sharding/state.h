#pragma once

// Placement of a value on the devices of a mesh: one AxisState per axis. Positions are factors, not
// labels: two dims of one extent are distinct.

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace medley {

enum class Holding : uint8_t { kReplicated, kPartialSum, kPartialMax, kSharded };

struct AxisState {
  Holding holding = Holding::kReplicated;
  int position = -1;  // cut factor, over all factors of the value
  int part = -1;      // index into the plan's parts
  bool cuts(int factor) const { return holding == Holding::kSharded && position == factor; }
  auto operator<=>(const AxisState&) const = default;
};

// One entry per axis of the mesh, at most two, stored in place: lowering creates very many.
class State {
 public:
  static constexpr size_t kMostAxes = 2;
  State() = default;
  explicit State(size_t axes, const AxisState& each = {}) : size_(axes) { axes_.fill(each); }
  State(std::initializer_list<AxisState> axes) : size_(axes.size()) {
    std::copy(axes.begin(), axes.end(), axes_.begin());
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void push_back(const AxisState& axis) { axes_.at(size_++) = axis; }
  const AxisState& operator[](size_t axis) const { return axes_[axis]; }
  AxisState& operator[](size_t axis) { return axes_[axis]; }
  const AxisState* begin() const { return axes_.data(); }
  const AxisState* end() const { return axes_.data() + size_; }
  AxisState* begin() { return axes_.data(); }
  AxisState* end() { return axes_.data() + size_; }
  // Entries after the last axis keep their initial value.
  bool operator==(const State& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  std::strong_ordering operator<=>(const State& other) const {
    return std::lexicographical_compare_three_way(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<AxisState, kMostAxes> axes_;
  size_t size_ = 0;
};

inline AxisState replicated() { return {}; }
inline AxisState partial_sum() { return {Holding::kPartialSum, -1, -1}; }
inline AxisState sharded(int position, int part) { return {Holding::kSharded, position, part}; }

}  // namespace medley
