#pragma once

// The executor over PyTorch's dispatcher: every op is a boxed call of its kernel, without autograd.
// Knows nothing of communication.

#include <c10/core/Device.h>

#include <memory>

#include "medley/runtime/executor.h"

namespace medley {

// Errors name the op, its operands and its place in the model. Buffers store an at::Tensor
// (kernels/tensor_buffer.h). Shared values are never changed; unshared ones are overwritten if that
// saves memory. `bf16_as`: the compute type for the graph's bf16.
std::unique_ptr<Executor> make_aten_executor(c10::Device device, DType bf16_as = DType::kBF16);

}  // namespace medley
