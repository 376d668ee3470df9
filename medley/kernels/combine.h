#pragma once

// The result of a communication on the tensors of all devices: the reference for transports. Sums
// run in the order of the devices, for 16-bit types in f32.

#include <ATen/core/Tensor.h>

#include <vector>

#include "medley/runtime/executor.h"

namespace medley {

using Tensors = std::vector<at::Tensor>;

// inputs[device][tensor] -> outputs[device][tensor]. Outputs may share memory with inputs and each
// other, and may be on another GPU of the process: arrived() moves them.
std::vector<Tensors> combine(CommunicationKind kind,
                             Reduce reduce,
                             const std::vector<Tensors>& inputs,
                             const std::vector<Executor::Lengths>& lengths);

// Returns whether a tensor that another device of the process has made must be copied before `own`
// computes with it. Host tensors may stay there: kernels read scalars from the host.
bool is_foreign(const at::Device& made_on, const at::Device& own);
at::Tensor arrived(at::Tensor tensor, const at::Device& own);

// Returns the sum (or maximum) of equally shaped tensors in their order. Requires: at least one.
at::Tensor reduce_in_order(const Tensors& terms, Reduce reduce);

}  // namespace medley
