#pragma once

// What the kernels of all update ops begin and end with. Knows no arithmetic.

#include <cmath>

#include "medley/torch/update.h"

namespace medley {

struct UpdateScalars {
  double learning_rate, step, clip_scale;
  bool skips() const { return std::isnan(clip_scale); }  // the step changes nothing
};
UpdateScalars read_scalars(const at::Tensor& scalars);

// Returns the tensor in which the arithmetic is done: the master copy, else the parameter. It and
// the states may be written then, without turned dims; the gradient is of its type and clipped.
at::Tensor& prepare_update(Updated& each, const UpdateScalars& now);

// The parameter takes the value of its master copy, if it has one.
void copy_master(Updated& each);

}  // namespace medley
