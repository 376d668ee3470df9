#pragma once

// The linear program of best_ratios() by cutting planes (Kelley 1960; stabilised in the manner of
// Ben-Ameur and Neto, https://doi.org/10.1002/net.20190). At given shares every segment has a class
// that is last. The rows of these classes, added up over the segments of a group, are one row of a
// small program in the shares only, and hold everywhere:
//
//   seconds of group g >= sum over its segments of (constant + slope * shares) of the class last at
//   x
//
// Solving it gives new shares and a lower bound; the sum itself an upper bound. Both meet after a
// few rounds, however many segments there are.

#include "medley/solve/ratios_merged.h"

namespace medley {

// The smallest number of bytes that, added to the room of every device, makes it suffice; and the
// shares with which it then does.
struct MissingRoom {
  double bytes = 0;
  ClassShares shares;
};
MissingRoom missing_room(const MergedRatios& problem);

// Best to within a billionth of what the shares decide. Where the objective leaves a choice, every
// part lies as balanced as it can.
// Requires: room for all.
ClassRatios cut_planes(const MergedRatios& problem);

}  // namespace medley
