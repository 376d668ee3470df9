#pragma once

// Gradient sync between stages of one pipeline (tied weights) or of several: the groups of
// parameters, the layouts during the sync, and the new values from owners to all holders. Knows
// nothing of ops.
//
//   gradient, as the stage accumulates it  P x S(1)    rows of the batch over axis 0
//   during the sync                        S(0) x S(1) every element on one device of the stage
//   as the update reads it                 R x S(1)
//
// Inside of a mesh the redistribution of each gradient does both steps. Between stages each element
// is sent once by each stage, for any mesh. For a share, sums and new values are in the layout of
// the update.

#include <vector>

#include "medley/lower/connect.h"

namespace medley {

// Divides updates over their owners, and adds the gradient syncs to the connections of each stage,
// in one posting order for all. Gradients are ordered by when they are done in the whole graph.
// Neighbours with the same holders form a gradient sync of at most `bytes`. Holders that share
// stages alternate, so that other stages sum meanwhile. New values use the opposite order, as
// updates begin with the first layer. Throws Error(kCaller) if shards of two stages have no cells,
// or if owners cannot divide a parameter.
void connect_gradient_syncs(const std::vector<DecidedStage>& stages,
                            const Plan& plan,
                            const Graph& whole,
                            int64_t bytes,
                            std::vector<Connections>& connections);

}  // namespace medley
