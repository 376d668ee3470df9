#pragma once

// The begin and the end of all update kernels. Knows no arithmetic.

#include "medley/kernels/update.h"

namespace medley {

// Returns the tensor to update: the master copy, else the parameter. It and the states become
// contiguous and writable. The gradient gets its type and is clipped.
at::Tensor& prepare_update(Updated& each, const UpdateNow& now);

// Copies the master copy, if there is one, to the parameter.
void copy_master(Updated& each);

}  // namespace medley
