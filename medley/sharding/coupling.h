#pragma once

#include <string>

#include "medley/sharding/factors.h"

namespace medley {

// Whether rows of the batch meet outside the loss sum and parameter gradients (batch norm, in-batch
// contrastive losses, a penalty added to the loss). Sharding such a graph over one mesh is exact;
// cutting it into micro-batches is not. Returns "" if rows are independent, else the stable name of
// the first op at which they meet.
std::string row_coupling(const Graph& graph, const Factors& factors);

}  // namespace medley
