#pragma once

#include <string>

#include "medley/sharding/factors.h"

namespace medley {

// Whether rows of the batch meet outside of sums over the step and parameter gradients (batch norm,
// in-batch contrastive losses, the root of a mean that depends on parameters). Sharding such a
// graph over one mesh is exact; cutting it into micro-batches is not. Returns "" if rows are
// independent, else why not, such as "rows meet in norm/batch_norm#0": of the first op, which may
// also have no rule that fits.
std::string row_coupling(const Graph& graph, const Factors& factors);

// Returns a graph of the same meaning that may be cut into micro-batches, as far as data flow
// permits:
//
//   - A sum over rows that needs no parameter, nor a buffer that the step changes, is known before
//     the first forward pass. An op that is not linear in it reads its kStepSum.
//   - A value without rows that is added to a sum over rows (a penalty, a constant) is added as its
//     kStepShare, so that it counts once a step.
//
// A graph that needs neither comes back as it is.
Graph with_step_sums(const Graph& graph);

}  // namespace medley
