#pragma once

// Gradients of parameters that several stages hold, of one pipeline (tied weights) or of several:
// which of them are summed together, and how each stage has them on the way. Knows nothing of ops.
//
//   gradient, as the stage adds it up      P x S(1)    rows of the batch over axis 0
//   on the way                             S(0) x S(1) every element on one device of the stage
//   as the update reads it                 R x S(1)
//
// Inside of a mesh the conversions of every gradient do both steps; between stages each element is
// sent once by each of them, whatever its mesh.

#include <memory>
#include <string>
#include <vector>

#include "medley/boxes/relay.h"
#include "medley/program/connect.h"

namespace medley {

// Returns for each stage its relays, in the one order in which all post them: that of `parameters`,
// by when their gradients are done in the whole graph. Parameters next to each other with the same
// holders go together, `bucket_bytes` at most if there are several. Throws Error(kCaller) where
// shards of two stages have no cells.
std::vector<std::vector<StageRelay>> connect_relays(const std::vector<DecidedStage>& stages,
                                                    const std::vector<std::string>& parameters,
                                                    int64_t bucket_bytes);

}  // namespace medley
