#pragma once

#include "medley/synthesis/request.h"

namespace medley {

// A lower bound of the step time of every plan: all devices of the request compute all the time,
// every op at the best rate that its size allows, and nothing is ever communicated. Under a profile
// the best rate is that of the op's class at any size that was measured (CostModel::least).
// Requires: `request` has costs and an analysis.
Nanoseconds work_bound(const Request& request);

}  // namespace medley
