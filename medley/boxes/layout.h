#pragma once

// Who has which elements of a value: the devices of a mesh, as a plan has divided it, or the files
// of a checkpoint. Knows nothing of what the devices are called.

#include <string>
#include <vector>

#include "medley/boxes/box.h"
#include "medley/sharding/state.h"

namespace medley {

// Boxes that are apart, each of one device or of several that have the same. A mesh of two devices
// by three, S(0, ..) x R with the lengths 3 and 0 of three rows:
//
//   boxes { [0, 3) }     box_of { 0, 0, 0, -1, -1, -1 }
//
// A device keeps its box as a tensor in row-major order, sizes those of its intervals.
struct Layout {
  FactorSizes factors;       // as whoever has it knows them: another layout of the value may have
                             // finer or coarser ones
  std::vector<Box> boxes;    // none empty
  std::vector<int> box_of;   // [device] into boxes; kNoBox: it has nothing
  std::vector<int> term_of;  // [device] a term of a sum that makes the value; empty: the value
                             // itself. Who has the same term of a box has the same elements
  bool operator==(const Layout&) const = default;
};
inline constexpr int kNoBox = -1;

// Where an axis of n devices cuts a factor: n + 1 points, from 0 up to its size; zero lengths are
// equal neighbours. One list, or, where axis 0 cuts the same factor, one for each of its pieces.
using CutPoints = std::vector<std::vector<int64_t>>;

// Returns the cut points of these lengths.
std::vector<int64_t> points_of(const std::vector<int64_t>& lengths);

// Returns how a value lies on a mesh of one or two axes, devices row-major. `points`: [axis]; of an
// axis that cuts nothing they are not read. A sum over several axes has as many terms as they have
// devices together. Requires: no partial maximum: it lives between ops only.
Layout layout_of(const FactorSizes& factors,
                 const State& state,
                 const std::vector<int64_t>& mesh,
                 const std::vector<CutPoints>& points);

// Returns the devices of each box, ascending.
std::vector<std::vector<int>> devices_of(const Layout& layout);

// Throws Error(kCaller) "<place>: ...: found ..., expected ..." for what is no layout: boxes with
// too few intervals, empty, outside of the value or over one another; a device of a box that is
// not there; terms of some devices only. That somebody has every element is not asked: cells say
// what nobody has.
void verify(const Layout& layout, const std::string& place);

}  // namespace medley
