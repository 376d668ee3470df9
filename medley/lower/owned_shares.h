#pragma once

// The owners of a parameter's update over pipelines, as intervals of one factor. Knows nothing of
// ops.
//
//   a weight of 12 x 8, columns over two devices in both pipelines, owners [3, 1]
//
//   pipeline 0   rows 0 - 9     each of its devices 9 x 4
//   pipeline 1   rows 9 - 12    each of its devices 3 x 4

#include <vector>

#include "medley/lower/connect.h"

namespace medley {

// Returns the shares of each stage. Chooses a factor that the stages of all owning pipelines know,
// and the one whose largest owning device owns least, so that factors cut by meshes are avoided if
// possible. Throws Error(kCaller) if exact lengths divide none.
std::vector<OwnedShares> divide_updates(const std::vector<DecidedStage>& stages, const Plan& plan);

}  // namespace medley
