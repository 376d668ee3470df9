#pragma once

// Whole tensors and the shards of them that a program places on devices. Knows nothing of how they
// travel.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "medley/program/program.h"
#include "medley/program/rows.h"

namespace medley {

using Table = std::vector<int64_t>;  // the value of every symbol of a local graph

// Returns "f32[256, 64]".
std::string describe(at::ScalarType type, at::IntArrayRef shape);

// Returns the shape that the whole value has; with the table of a micro-batch, what it has there.
std::vector<int64_t> whole_shape(const Placement& placement, const Table& table);

// Returns this device's shard of a whole value; shares its memory where the shard is a piece of it.
// Requires: `whole` has the whole shape.
at::Tensor shard_of(const at::Tensor& whole,
                    const LoweredStage& stage,
                    const Placement& placement,
                    const Table& table);

// Where a shard lies: how its stage places the value, and the table of its device.
struct ShardPlace {
  const Placement* placement;
  const Table* table;
};

// The reverse, of shards of one stage or of several. Of a value that is not cut the first is
// returned. What no shard has is not set. Requires: shards have their local shapes.
at::Tensor assemble(const std::vector<at::Tensor>& shards, const std::vector<ShardPlace>& places);

// Whether the shards of the devices of one stage are the whole value: of what owners divide over
// pipelines (plan/owners.h) they are a share of it, or nothing.
bool is_whole(const Placement& placement, const std::vector<const Table*>& tables);

// The rows of a batch tensor that one device reads, micro-batch after micro-batch. Accepts the
// global batch or, if `accept_own`, only the rows that this device needs (rows_of(stage,
// device)). What it returns may share the memory of what it was given. Throws Error(kCaller) naming
// the key, what was found and what was expected.
class BatchSlicer {
 public:
  // `device` is an index into the mesh. Requires: `stage` outlives this.
  BatchSlicer(const LoweredStage& stage, int device, bool accept_own);
  std::vector<at::Tensor> slice(const Placement& placement, const at::Tensor& given) const;

 private:
  const Table& table(size_t microbatch) const;
  bool is_own(const Placement& placement, const at::Tensor& given) const;
  at::Tensor slice_own(const Placement& placement,
                       const at::Tensor& given,
                       size_t microbatch,
                       int64_t first) const;

  const LoweredStage& stage_;
  int device_;
  bool accept_own_;
  std::vector<Rows> needed_;  // [microbatch]
  int64_t num_needed_ = 0;
};

}  // namespace medley
