#pragma once

// A tensor as the core sees it. Knows nothing of frames.

#include <ATen/core/Tensor.h>

#include "medley/runtime/executor.h"

namespace medley {

// An undefined tensor is the null buffer, and the other way round.
inline Buffer to_buffer(at::Tensor tensor) {
  return tensor.defined() ? std::make_shared<at::Tensor>(std::move(tensor)) : nullptr;
}
inline at::Tensor to_tensor(const Buffer& buffer) {
  return buffer ? *static_cast<const at::Tensor*>(buffer.get()) : at::Tensor();
}

// Whether nobody else can see the memory of this tensor, so that overwriting it changes no other
// value: the only reference to it, the only one to its storage, no element that stands twice, and
// memory that PyTorch itself allocated (not NumPy's, not a mapped file).
inline bool is_unique(const at::Tensor& tensor) {
  return tensor.defined() && tensor.use_count() == 1 && tensor.has_storage() &&
         tensor.is_non_overlapping_and_dense() && tensor.storage().use_count() == 1 &&
         tensor.storage().unsafeGetStorageImpl()->resizable();
}

}  // namespace medley
