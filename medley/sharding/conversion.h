#pragma once

// How a value gets from one state to another on a mesh: axis by axis, each step a conversion among
// the devices that differ in that axis only. Two axes may cut the same factor; then axis 1 divides
// each piece that axis 0 makes:
//
//   S(p, a) x S(p, b)  ->  R x S(p, b)      axis 1 gathers, axis 0 gathers, axis 1 cuts the whole
//   P x P              ->  S(p, a) x R      axis 0 reduces and scatters, axis 1 reduces the piece
//
// Knows nothing of sizes and links.

#include <vector>

#include "medley/sharding/state.h"

namespace medley {

struct ConversionStep {
  int axis;
  AxisState to;
  bool operator==(const ConversionStep&) const = default;
};

// Returns the steps in order; none if the states are equal. What makes the piece of a device
// smaller comes first, so that what follows moves less: inside nodes (axis 1) before between them,
// and the other way round for what makes it larger.
// Requires: as many axes in both, one or two.
std::vector<ConversionStep> conversion_steps(const State& from, const State& to);

// Whether both cut the same factor, so that one lies within the other.
inline bool are_nested(const AxisState& a, const AxisState& b) {
  return a.holding == Holding::kSharded && b.holding == Holding::kSharded &&
         a.position == b.position;
}

}  // namespace medley
