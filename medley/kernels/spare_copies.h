#pragma once

// Reuses the memory of tensors that a checkpoint kept while copies replaced them, for the copies of
// the next one. Fresh memory costs a page fault per 4 KiB.

#include <ATen/core/Tensor.h>

namespace medley {

// Returns a contiguous copy, in spare memory if some has its size.
at::Tensor copy_of(const at::Tensor& tensor);

// Keeps memory of this process until it is taken or dropped. Ignores shared tensors and tensors
// outside of host memory.
void keep_spare(at::Tensor tensor);
void drop_spares();
int64_t spare_bytes();

}  // namespace medley
