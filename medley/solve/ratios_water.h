#pragma once

#include "medley/solve/ratios_merged.h"

namespace medley {

// Whether fill_water() can solve it.
bool is_water(const MergedRatios& problem);

// The closed form for one part, one segment and at most one exchange. Shares grow to what a device
// can do in some time, but not above its room, nor above a common level that the exchange pays for:
//
//   share          .---.  level
//     |        |###|   | b                  share[i] = min((time - constant[i]) / slope[i], level,
//     |  |###| |###|###| |   |                             room[i] / bytes per share)
//     |  |###| |###|###| |###|.             sum of shares = 1
//     +------------------------> i
//
// More time allows a lower level. What both cost together is convex in the time, with a kink
// wherever a device reaches the level or its room: the kinks are passed in order while that pays.
//
// Requires: is_water(problem); room for all.
ClassRatios fill_water(const MergedRatios& problem);

}  // namespace medley
