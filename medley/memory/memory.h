#pragma once

// Live tensor bytes of a device while a program runs, found by following its calls (liveness.h).
// Includes workspaces that kernels keep (DeviceKind::workspace_bytes). Knows nothing of allocators:
// actual use may be slightly higher.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/memory/liveness.h"

namespace medley {

std::string_view to_string(MemoryPart part);  // "saved"

struct MemoryUse {
  int64_t persistent = 0;      // across steps: parameters, buffers, optimizer state
  int64_t peak = 0;            // all bytes, persistent included
  std::string peak_at;         // "backward 1, h.0.mlp: aten.mm.default"
  MemoryParts at_peak{};       // adds up to `peak`
  std::vector<int64_t> saved;  // [microbatch] at the end of its forward call
};

// Returns the use of one device. `device`: index into stage.devices.
MemoryUse memory_use(const LoweredStage& stage, int device);
// Returns the use of all devices, [device]. Devices with equal sizes are followed once.
std::vector<MemoryUse> memory_uses(const LoweredStage& stage);

// Memory use of one device of a program.
struct DeviceMemory {
  int stage = 0;
  int device = 0;  // in the cluster
  MemoryUse use;
};
std::vector<DeviceMemory> memory_uses(const Program& program);

// Like memory_use(), and appends all points in order.
MemoryUse memory_use(const LoweredStage& stage, int device, std::vector<MemoryPoint>& points);

}  // namespace medley
