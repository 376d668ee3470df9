#pragma once

// One all-to-all of bytes in a process group. Knows nothing of what they are.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace medley {

// `sent`: [rank] flat bytes, undefined if there are none; `lengths`: [rank] bytes to receive.
// Returns [rank] the received bytes. All members of the group, named as in c10d, call it. Throws
// Error(kEnvironment).
std::vector<at::Tensor> exchange_bytes(const std::string& group,
                                       const std::vector<at::Tensor>& sent,
                                       const std::vector<int64_t>& lengths,
                                       std::chrono::milliseconds timeout);

}  // namespace medley
