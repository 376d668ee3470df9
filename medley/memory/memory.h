#pragma once

// Bytes of tensors alive on a device while a program runs, by following its calls (liveness.h). Of
// what kernels need for themselves it knows what they keep from one to the next
// (DeviceKind::workspace_bytes); of allocators nothing: real use may be a little more.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/memory/liveness.h"

namespace medley {

std::string_view to_string(MemoryPart part);  // "saved"

struct MemoryUse {
  int64_t persistent = 0;      // from step to step: parameters, buffers, optimizer state
  int64_t peak = 0;            // of everything, persistent included
  std::string peak_at;         // "backward 1, h.0.mlp: aten.mm.default"
  MemoryParts at_peak{};       // adds up to `peak`
  std::vector<int64_t> saved;  // [microbatch] when its forward call ends
};

// `device`: index into stage.devices.
MemoryUse memory_use(const LoweredStage& stage, int device);
// Of all, [device]. Devices whose values have equal sizes are followed once.
std::vector<MemoryUse> memory_uses(const LoweredStage& stage);

// The same for all stages of a program.
struct DeviceMemory {
  int stage = 0;
  int device = 0;  // of the cluster
  MemoryUse use;
};
std::vector<DeviceMemory> memory_uses(const Program& program);

// The same, with all points in order.
MemoryUse memory_use(const LoweredStage& stage, int device, std::vector<MemoryPoint>& points);

}  // namespace medley
