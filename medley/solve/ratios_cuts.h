#pragma once

// Solves the linear program of best_ratios() by cutting planes (Kelley 1960; stabilised as by
// Ben-Ameur and Neto, https://doi.org/10.1002/net.20190). At given shares every segment has a
// slowest class. The rows of these classes, summed over the segments of a group, form one valid row
// of a small program in the shares only:
//
//   seconds of group g >= sum over its segments of (constant + slope * shares) of the class last at
//   x
//
// Its solution gives new shares and a lower bound; the sum gives an upper bound. Both meet after a
// few rounds for any number of segments.

#include "medley/solve/ratios_merged.h"

namespace medley {

// The least number of bytes by which the room of every device must grow, and the shares that then
// fit.
struct MissingRoom {
  double bytes = 0;
  ClassShares shares;
};
MissingRoom missing_room(const MergedRatios& problem);

// Returns a solution within 1e-9 of the part of the objective that depends on shares. Ties are
// resolved towards balanced parts. Requires: room for all.
ClassRatios cut_planes(const MergedRatios& problem);

}  // namespace medley
