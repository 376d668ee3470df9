#pragma once

// The intersection of several layouts of one value: the largest boxes of which every device of
// every layout stores all or nothing. Used to move a value from one layout to another. A weight of
// 12 heads, cut in two by one stage and in three by another:
//
//   layouts[0]   |---- 0 ----|---- 1 ----|
//   layouts[1]   |-- 0 --|-- 1 --|-- 2 --|
//   cells        |       |   |   |       |
//   boxes         0,0     0,1 1,1 1,2
//
// Knows no devices: devices_of() each layout returns the devices of a box.

#include <string>
#include <vector>

#include "medley/boxes/layout.h"

namespace medley {

struct Cell {
  Box box;                 // by Cells::factors
  std::vector<int> boxes;  // [layout] the box that contains the cell; kNoBox: no device stores it
  bool operator==(const Cell&) const = default;
};

struct Cells {
  FactorSizes factors;      // shared by all boxes: as few as the layouts' cuts allow
  std::vector<Cell> cells;  // disjoint, together the whole value; by their first elements
};

// Returns the cells of all layouts, in the time of sorting the boxes plus that of the result. The
// layouts' factors refine each other at the cuts, as in graphs of one model. Throws Error(kCaller)
// "<place of a layout>: found ..., expected ..." if sizes differ, if no factors fit all cuts, or if
// boxes of one layout overlap. Without `places`, they are "layouts[<i>]". Requires: layouts that
// verify().
Cells cells_of(const std::vector<Layout>& layouts, const std::vector<std::string>& places = {});

}  // namespace medley
