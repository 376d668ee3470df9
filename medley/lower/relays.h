#pragma once

// Gradients of parameters that several stages hold, of one pipeline (tied weights) or of several:
// which of them are summed together, and how each stage has them on the way; and the new values of
// parameters that owners divide, on their way to all holders. Knows nothing of ops.
//
//   gradient, as the stage adds it up      P x S(1)    rows of the batch over axis 0
//   on the way                             S(0) x S(1) every element on one device of the stage
//   as the update reads it                 R x S(1)
//
// Inside of a mesh the conversions of every gradient do both steps; between stages each element is
// sent once by each of them, whatever its mesh. Of a share, sums and new values arrive and set out
// as the update has them.

#include <vector>

#include "medley/lower/connect.h"

namespace medley {

// Divides updates over their owners, and adds the relays to what each stage knows of the others, in
// the one order in which all post them. Those of gradients: parameters by when their gradients are
// done in the whole graph; those next to each other with the same holders go together, `bytes` at
// most if there are several; and holders that share stages take turns, so that stages whose turn it
// is not sum with others meanwhile. Those of new values: in the opposite order, as parameters are
// updated from the first layer on. Throws Error(kCaller) where shards of two stages have no cells,
// or owners cannot divide a parameter.
void connect_relays(const std::vector<DecidedStage>& stages,
                    const Plan& plan,
                    const Graph& whole,
                    int64_t bytes,
                    std::vector<Connections>& connections);

}  // namespace medley
