#pragma once

// What the kernels of all update ops begin and end with. Knows no arithmetic.

#include "medley/kernels/update.h"

namespace medley {

// Returns the tensor in which the arithmetic is done: the master copy, else the parameter. It and
// the states may be written then, without turned dims; the gradient is of its type and clipped.
at::Tensor& prepare_update(Updated& each, const UpdateNow& now);

// The parameter takes the value of its master copy, if it has one.
void copy_master(Updated& each);

}  // namespace medley
