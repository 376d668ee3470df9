#pragma once

// How a value lies on the devices of a mesh: one AxisState per axis. Positions are factors, not
// labels: two dims of one extent are apart.

#include <compare>
#include <string>
#include <vector>

namespace medley {

enum class Holding : uint8_t { kReplicated, kPartialSum, kPartialMax, kSharded };

struct AxisState {
  Holding holding = Holding::kReplicated;
  int position = -1;  // of the factor that is cut, counted over all factors of the value
  int part = -1;      // index into the plan's parts
  auto operator<=>(const AxisState&) const = default;
};

using State = std::vector<AxisState>;  // one per axis of the mesh

inline AxisState replicated() { return {}; }
inline AxisState partial_sum() { return {Holding::kPartialSum, -1, -1}; }
inline AxisState sharded(int position, int part) { return {Holding::kSharded, position, part}; }

}  // namespace medley
