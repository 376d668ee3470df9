#pragma once

// Bytes from each to each of a process group, once. Knows nothing of what they are.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// `sent`: [rank] flat bytes, undefined where there are none; `lengths`: [rank] of those to be
// received. Returns them likewise. All members of the group, which c10d knows by the name, call it.
// Throws Error(kEnvironment).
std::vector<at::Tensor> exchange_bytes(const std::string& group,
                                       const std::vector<at::Tensor>& sent,
                                       const std::vector<int64_t>& lengths,
                                       std::chrono::milliseconds timeout);

}  // namespace medley
