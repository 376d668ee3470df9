#pragma once

// Compares a checkpoint with the state of a run.

#include <string>
#include <vector>

#include "medley/checkpoint/held_values.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// Throws Error(kCaller) "<folder>: <kind> "<name>": found ..., expected ..." for the first value
// that only one side has, or whose type or shape differs. Compares parameters, buffers and, unless
// `parameters_only`, the optimizer's state. Buffers that no step changes may be absent on either
// side, since a plan omits those that none of its ops read. Averages of the weights may all be
// absent from the checkpoint: they start from the weights.
void require_match(const Manifest& manifest,
                   const std::string& folder,
                   const std::vector<HeldValue>& values,
                   bool parameters_only);

// Returns "f32[256, 64]".
std::string describe(DType dtype, const std::vector<int64_t>& shape);

}  // namespace medley
