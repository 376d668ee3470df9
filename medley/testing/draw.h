#pragma once

// A pipeline in letters, for headers, documentation and terminals.

#include <string>

#include "medley/schedule/timer.h"

namespace medley {

// A line per stage, and between two of them a line for each direction of their boundary if it takes
// time; a column of as many characters as the longest name needs per `unit`.
//
//   s0   F0 F1             B0--- B1---
//   0>1     0- 1-
//   0<1                 0-       1-
//   s1         F0 B0--- F1 B1---
//
// Times that are no multiples of the unit are rounded down; what is shorter than one is not drawn.
// Requires: timing is of this order, unit > 0.
std::string draw(const PipelineOrder& order, const Timing& timing, Nanoseconds unit);

}  // namespace medley
