#pragma once

// The elements of a value on each device of a mesh, or in each file of a checkpoint. Knows no names
// of devices.

#include <string>
#include <vector>

#include "medley/boxes/box.h"
#include "medley/sharding/placement.h"

namespace medley {

// Disjoint boxes, each of one device or of several replicas. A 2 x 3 mesh with S(0, ..) x R and the
// lengths 3 and 0 of three rows:
//
//   boxes { [0, 3) }     box_of { 0, 0, 0, -1, -1, -1 }
//
// A device stores its box as a row-major tensor, whose sizes are those of the intervals.
struct Layout {
  FactorSizes factors;      // other layouts of the value may have finer or coarser ones
  std::vector<Box> boxes;   // without empty ones
  std::vector<int> box_of;  // [device] into boxes; kNoBox: it stores nothing
  // [device] term of a sum; equal terms have equal elements; empty: the value itself
  std::vector<int> term_of;
  bool operator==(const Layout&) const = default;
};
inline constexpr int kNoBox = -1;

// The points at which an axis of n devices cuts a factor: n + 1 points from 0 to its size. A zero
// length is two equal points. One list, or one per piece of axis 0 if that cuts the same factor.
using CutPoints = std::vector<std::vector<int64_t>>;

// Returns the cut points of these lengths.
std::vector<int64_t> points_of(const std::vector<int64_t>& lengths);

// Returns the layout of a value on a 1-D or 2-D mesh, devices row-major. `points`: [axis], read
// only for axes that cut. A sum over several axes has as many terms as the product of their
// devices. Requires: no partial maximum, which exists between ops only.
Layout layout_of(const FactorSizes& factors,
                 const Placement& placement,
                 const std::vector<int64_t>& mesh,
                 const std::vector<CutPoints>& points);

// Returns the layout on devices with these boxes: equal ones are replicas, empty ones are no box.
Layout layout_of(FactorSizes factors, const std::vector<Box>& box_of_device);

// Returns the devices of each box, ascending.
std::vector<std::vector<int>> devices_of(const Layout& layout);

// Throws Error(kCaller) "<place>: ...: found ..., expected ..." for boxes with too few intervals,
// for empty, outside or overlapping boxes, for a device with a missing box, and if only some
// devices have terms. Elements without a device are allowed: the cells show them.
void verify(const Layout& layout, const std::string& place);

}  // namespace medley
