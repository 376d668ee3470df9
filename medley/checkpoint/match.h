#pragma once

// Whether a checkpoint is one of what a run keeps.

#include <string>
#include <vector>

#include "medley/checkpoint/held_values.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// Throws Error(kCaller) "<folder>: <kind> "<name>": found ..., expected ..." with the first value
// that only one of them has, or that differs in type or shape; of the parameters and buffers, and
// of the optimizer's state unless `parameters_only`. A plan leaves out buffers that none of its ops
// reads: they may be absent on either side if no step changes them. Averages of the weights may be
// absent from the checkpoint, all of them: they start from the weights.
void require_match(const Manifest& manifest,
                   const std::string& folder,
                   const std::vector<HeldValue>& values,
                   bool parameters_only);

// Returns "f32[256, 64]".
std::string describe(DType dtype, const std::vector<int64_t>& shape);

}  // namespace medley
