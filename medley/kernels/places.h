#pragma once

// Boxes of tensors, and the offsets of their elements in the flat tensor. Knows nothing of the
// elements.

#include <ATen/core/Tensor.h>

#include "medley/boxes/runs.h"

namespace medley {

// Returns the runs, in elements, of a box inside a tensor of the sizes `full`. Requires: equal
// ranks and a box inside.
Runs runs_of(at::IntArrayRef sizes, at::IntArrayRef origin, at::IntArrayRef full);

// Returns the offsets of all elements, i64 and flat.
at::Tensor places_of(const Runs& runs, const at::TensorOptions& options);

}  // namespace medley
