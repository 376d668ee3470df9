#pragma once

// The executor over PyTorch's dispatcher: every op is a boxed call of its kernel, without autograd.
// Knows nothing of communication.

#include <c10/core/Device.h>

#include <memory>

#include "medley/runtime/executor.h"

namespace medley {

// Errors name the op, its operands and its place in the model. Buffers hold an at::Tensor
// (kernels/tensor_buffer.h). Values are never changed once somebody else may see them; what nobody
// else holds is overwritten where that saves memory.
//
// `bf16_as`: what is computed where a graph says bf16.
std::unique_ptr<Executor> make_aten_executor(c10::Device device, DType bf16_as = DType::kBF16);

}  // namespace medley
