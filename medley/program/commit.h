#pragma once

// Where a step can no longer be taken back. Until all devices have all their gradients nothing that
// outlives the step is changed; from then on every device can finish it without the others:
//
//   waits for gradients, the loss  |  norm over all devices  |  optimizer, what only spreads its
//   result
//                                     the commit
//
// Whoever has the norm knows that everybody has contributed to it, and so has all gradients.

#include <vector>

#include "medley/program/walk.h"

namespace medley {

// Reorders the items of the update phase like this, everything else in its order. Returns the
// communication that is the commit: the last that the norm takes; kNone where the device needs no
// others for it, or has nothing to update.
int commit_first(const LoweredStage& stage, std::vector<Item>& order);

// Whether anything is communicated behind the commit: new parameters that several devices made in
// parts.
bool spreads_after_commit(const LoweredStage& stage);

}  // namespace medley
