#pragma once

#include <string>

#include "medley/sharding/factors.h"

namespace medley {

// Returns the reason for cross-sample dependence outside of sums over the step and parameter
// gradients: batch norm, in-batch contrastive losses, the root of a mean that depends on
// parameters. Such a graph can be sharded over one mesh exactly, but not cut into micro-batches.
// Returns "" for independent rows, else the first such op, "rows meet in norm/batch_norm#0", or an
// op without a rule.
std::string row_coupling(const Graph& graph, const Factors& factors);

// Returns an equivalent graph that may be cut into micro-batches, as far as data flow permits:
//
//   - A sum over rows that needs no parameter, nor a buffer that the step changes, is known before
//     the first forward pass. An op that is not linear in it reads its kStepSum.
//   - A value without rows that is added to a sum over rows (a penalty, a constant) is added as its
//     kStepShare, so that it counts once a step.
//
// Returns other graphs unchanged.
Graph with_step_sums(const Graph& graph);

}  // namespace medley
