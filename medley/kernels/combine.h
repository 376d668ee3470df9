#pragma once

// What a communication computes, on the tensors of all devices at once: the reference for
// transports. Sums run in the order of the devices, of 16-bit types in f32.

#include <ATen/core/Tensor.h>

#include <vector>

#include "medley/runtime/executor.h"

namespace medley {

using Tensors = std::vector<at::Tensor>;

// inputs[device][tensor] -> outputs[device][tensor]. Outputs may share memory with inputs and each
// other, and lie on the GPU of another device of the process: arrived() moves them.
std::vector<Tensors> combine(CommunicationKind kind,
                             Reduce reduce,
                             const std::vector<Tensors>& inputs,
                             const std::vector<Executor::Lengths>& lengths);

// Whether a tensor that another device of the process has made has to be copied before `own` can
// compute with it. What lies on the host may stay there: kernels take scalars from there.
bool is_foreign(const at::Device& made_on, const at::Device& own);
at::Tensor arrived(at::Tensor tensor, const at::Device& own);

// Returns the sum (or maximum) of equally shaped tensors in their order. Requires: at least one.
at::Tensor reduce_in_order(const Tensors& terms, Reduce reduce);

}  // namespace medley
