#pragma once

// Draws a pipeline in letters, for headers, documentation and terminals.

#include <string>

#include "medley/schedule/timer.h"

namespace medley {

// Returns a line per stage, and between two stages a line for each direction of their boundary if
// it takes time. A column has as many characters per `unit` as the longest name.
//
//   s0   F0 F1             B0--- B1---
//   0>1     0- 1-
//   0<1                 0-       1-
//   s1         F0 B0--- F1 B1---
//
// Times are rounded down to units; shorter ones are not drawn. Requires: timing is of this order,
// unit > 0.
std::string draw(const PipelineOrder& order, const Timing& timing, Nanoseconds unit);

}  // namespace medley
