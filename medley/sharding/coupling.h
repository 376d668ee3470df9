#pragma once

#include <string>

#include "medley/sharding/factors.h"

namespace medley {

// Whether rows of the batch meet outside the loss sum and parameter gradients (batch norm, in-batch
// contrastive losses, a penalty added to the loss). Sharding such a graph over one mesh is exact;
// cutting it into micro-batches is not. Returns "" if rows are independent, else why not, such as
// "rows meet in norm/batch_norm#0": of the first op, which may also have no rule that fits.
std::string row_coupling(const Graph& graph, const Factors& factors);

}  // namespace medley
