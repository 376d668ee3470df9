#pragma once

// Layouts of one value, intersected: boxes so small that every device of every layout has all of
// one or nothing, and no smaller: no two of them that the same devices have make one box. Whoever
// moves a value from one layout to another asks this. A weight of 12 heads, cut in two by one
// stage, in three by another:
//
//   layouts[0]   |---- 0 ----|---- 1 ----|
//   layouts[1]   |-- 0 --|-- 1 --|-- 2 --|
//   cells        |       |   |   |       |
//   boxes         0,0     0,1 1,1 1,2
//
// Knows no devices: devices_of() each layout says who has a box.

#include <string>
#include <vector>

#include "medley/boxes/layout.h"

namespace medley {

struct Cell {
  Box box;                 // of Cells::factors
  std::vector<int> boxes;  // [layout] the one of its boxes in which the cell lies; kNoBox: nobody
                           // has the cell there
  bool operator==(const Cell&) const = default;
};

struct Cells {
  FactorSizes factors;      // of all boxes: as few as the layouts' cuts allow
  std::vector<Cell> cells;  // apart, together the whole value; by their first elements
};

// The factors of all layouts refine each other as far as they are cut, as those of graphs of one
// model do. Costs what sorting the boxes costs, and what it returns. Throws Error(kCaller) "<place
// of a layout>: found ..., expected ..." if they are of different sizes, if no factors fit the cuts
// of all, or if boxes of one lie over one another; without `places`, they are "layouts[<i>]".
// Requires: layouts that verify().
Cells cells_of(const std::vector<Layout>& layouts, const std::vector<std::string>& places = {});

}  // namespace medley
