#pragma once

// A tensor as the core's buffer. Knows nothing of frames.

#include <ATen/core/Tensor.h>

#include "medley/runtime/executor.h"

namespace medley {

// Converts an undefined tensor to the null buffer, and vice versa.
inline Buffer to_buffer(at::Tensor tensor) {
  return tensor.defined() ? std::make_shared<at::Tensor>(std::move(tensor)) : nullptr;
}
inline at::Tensor to_tensor(const Buffer& buffer) {
  return buffer ? *static_cast<const at::Tensor*>(buffer.get()) : at::Tensor();
}

// Returns whether overwriting this tensor changes no other value: it is the only reference to
// itself and to its storage, no element appears twice, and PyTorch allocated the memory (not NumPy,
// not a mapped file).
inline bool is_unique(const at::Tensor& tensor) {
  return tensor.defined() && tensor.use_count() == 1 && tensor.has_storage() &&
         tensor.is_non_overlapping_and_dense() && tensor.storage().use_count() == 1 &&
         tensor.storage().unsafeGetStorageImpl()->resizable();
}

}  // namespace medley
