#pragma once

// Redistributes a value between placements on a mesh, axis by axis. Each step is among the devices
// that differ in that axis only. If two axes cut the same factor, axis 1 divides each piece of axis
// 0:
//
//   S(p, a) x S(p, b)  ->  R x S(p, b)      axis 1 gathers, axis 0 gathers, axis 1 cuts the whole
//   P x P              ->  S(p, a) x R      axis 0 reduces and scatters, axis 1 reduces the piece
//
// Knows nothing of sizes and links.

#include <vector>

#include "medley/sharding/placement.h"

namespace medley {

struct RedistributionStep {
  int axis;
  AxisPlacement to;
  bool operator==(const RedistributionStep&) const = default;
};

// Returns the steps in order; none if the placements are equal. Steps that shrink a device's piece
// come first, so that later steps move less: inside nodes (axis 1) before between them. Steps that
// grow it use the reverse order. Requires: as many axes in both, one or two.
std::vector<RedistributionStep> redistribution_steps(const Placement& from, const Placement& to);

// Returns whether both cut the same factor, so that one is nested in the other.
inline bool are_nested(const AxisPlacement& a, const AxisPlacement& b) {
  return a.holding == Holding::kSharded && b.holding == Holding::kSharded &&
         a.position == b.position;
}

}  // namespace medley
