#pragma once

// Memory of tensors that a checkpoint has held while copies took their place, for the copies that
// the next one makes needed. Fresh memory costs a page fault for every 4 KiB.

#include <ATen/core/Tensor.h>

namespace medley {

// Returns a copy without turned dims, in spare memory where there is some of its size.
at::Tensor copy_of(const at::Tensor& tensor);

// Of this process, until they are taken or dropped. Does nothing with what others hold, too, and
// with what is not in the memory of the host.
void keep_spare(at::Tensor tensor);
void drop_spares();
int64_t spare_bytes();

}  // namespace medley
