#pragma once

// Bytes of tensors alive on a device while a program runs, by following its calls. Views share the
// storage of what they are views of. Knows nothing of allocators, kernels' workspaces or in-place
// reuse: real use may be a little more or less.

#include <string>

#include "medley/program/program.h"

namespace medley {

struct MemoryUse {
  int64_t persistent = 0;  // parameters, buffers, optimizer state
  int64_t peak = 0;        // of everything, persistent included
  std::string peak_at;     // "backward 1, h.0.mlp: aten.mm.default"
};

// `device`: index into stage.devices.
MemoryUse memory_use(const LoweredStage& stage, int device);

}  // namespace medley
