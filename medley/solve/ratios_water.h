#pragma once

#include "medley/solve/ratios_merged.h"

namespace medley {

// Returns whether fill_water() can solve the problem.
bool is_water(const MergedRatios& problem);

// Closed form for one part, one segment and at most one exchange. A share is limited by a device's
// work in a given time, by its room, and by a common level that the exchange pays for:
//
//   share          .---.  level
//     |        |###|   | b                  share[i] = min((time - constant[i]) / slope[i], level,
//     |  |###| |###|###| |   |                             room[i] / bytes per share)
//     |  |###| |###|###| |###|.             sum of shares = 1
//     +------------------------> i
//
// More time allows a lower level. The total cost is convex in the time, with a kink at each point
// where a device reaches the level or its room. Kinks are passed in order while the cost falls.
//
// Requires: is_water(problem); room for all.
ClassRatios fill_water(const MergedRatios& problem);

}  // namespace medley
