#pragma once

// The commit of a step. Before it, all state that outlives the step is unchanged, since some device
// may lack gradients. After it every device can finish the step alone:
//
//   waits for gradients, the loss  |  norm over all devices  |  optimizer, communication of
//                                     the commit                its result
//
// A device with the norm knows that all devices have contributed, and so have all gradients.

#include <vector>

#include "medley/program/walk.h"

namespace medley {

// Reorders the items of the update phase in this way; others keep their order. Returns the commit:
// the last communication that the norm needs. Returns kNone if the device needs no others for it,
// or has no update.
int commit_first(const LoweredStage& stage, std::vector<Item>& order);

// Returns whether communication follows the commit: new parameters computed in parts.
bool spreads_after_commit(const LoweredStage& stage);

}  // namespace medley
