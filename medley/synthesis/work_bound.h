#pragma once

#include "medley/synthesis/request.h"

namespace medley {

// A lower bound of the step time of every plan: all devices of the request compute all the time,
// every op at the rate that each of them reaches for all rows of the step at once, and nothing is
// ever communicated. Holds where an op for some of the rows takes at least their share of its time.
// Requires: `request` has costs and ground.
Nanoseconds work_bound(const Request& request);

}  // namespace medley
