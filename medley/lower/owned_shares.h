#pragma once

// Owners of a parameter's update over pipelines, as intervals: which of its factors they cut, and
// where. Knows nothing of ops.
//
//   a weight of 12 x 8, columns over two devices in both pipelines, owners [3, 1]
//
//   pipeline 0   rows 0 - 9     each of its devices 9 x 4
//   pipeline 1   rows 9 - 12    each of its devices 3 x 4

#include <vector>

#include "medley/lower/connect.h"

namespace medley {

// Returns the shares of each stage. The factor is one that the stages of all pipelines that own
// anything know; of those the one in which the device that owns the most of its share owns least,
// so that none is taken that meshes cut already while there is another. Throws Error(kCaller) where
// exact lengths divide none.
std::vector<OwnedShares> divide_updates(const std::vector<DecidedStage>& stages, const Plan& plan);

}  // namespace medley
