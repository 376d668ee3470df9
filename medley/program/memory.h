#pragma once

// Bytes of tensors alive on a device while a program runs, by following its calls as the
// interpreter does (the emulation counts the same along a real run). Views, updates in place and
// sums into an accumulator share the storage of what they are made of, and an op whose operand dies
// may take its place (ops/overwrite.h). Of what kernels need for themselves it knows what they keep
// from one to the next (DeviceKind::workspace_bytes); of allocators nothing: real use may be a
// little more.
//
//   bytes  ^            ____                     saved values pile up over the forward calls and
//          |       ____/    \__     _            go in the backward calls
//          |  ____/            \___/ \__
//          |_/__________________________\____
//          |  parameters, optimizer, batch
//          +----------------------------------> calls
//
// A communication holds what it sends until it has been awaited, and what it brings from the post
// on. An all-reduce of one tensor that nobody else holds happens in place; one of several travels
// as a copy. What other stages send is there from its post on, ahead of its use (lanes.h); what is
// sent to them until it is the oldest of too many.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/program/program.h"

namespace medley {

enum class MemoryPart : uint8_t {
  kParameters,
  kBuffers,        // and scalars
  kOptimizer,      // its state
  kMasters,        // copies of the parameters in full precision
  kGradients,      // accumulated, and other values of the whole step
  kBatch,          // the inputs of all micro-batches
  kSaved,          // by forward calls for their backward calls
  kCommunication,  // on their way
  kTransient,      // the rest
  kWorkspaces,     // of kernels
};
inline constexpr size_t kNumMemoryParts = 10;
std::string_view to_string(MemoryPart part);  // "saved"
using MemoryParts = std::array<int64_t, kNumMemoryParts>;

struct MemoryUse {
  int64_t persistent = 0;      // from step to step: parameters, buffers, optimizer state
  int64_t peak = 0;            // of everything, persistent included
  std::string peak_at;         // "backward 1, h.0.mlp: aten.mm.default"
  MemoryParts at_peak{};       // adds up to `peak`
  std::vector<int64_t> saved;  // [microbatch] when its forward call ends
};

// [device] what kernels keep for themselves; empty if nothing (LoweredStage::workspaces).
std::vector<int64_t> workspaces_of(const std::vector<int>& devices, const Cluster& cluster);

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

// What is alive while the step `step` of call `call` runs its op number `op` (or posts, or waits:
// 0), and after it.
struct MemoryPoint {
  size_t call = 0, step = 0, op = 0;
  int64_t during = 0, after = 0;
};
// The same, with all points in order.
MemoryUse memory_use(const LoweredStage& stage, int device, std::vector<MemoryPoint>& points);

}  // namespace medley
