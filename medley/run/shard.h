#pragma once

// Whole tensors and their shards on the devices of a program. Knows nothing of how they travel.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "medley/program/program.h"
#include "medley/program/rows.h"

namespace medley {

using Table = std::vector<int64_t>;  // value of every symbol of a local graph

// Returns "f32[256, 64]".
std::string describe(at::ScalarType type, at::IntArrayRef shape);

// Returns the shape of the whole value, or of its part in a micro-batch with that one's table.
std::vector<int64_t> whole_shape(const PlacedValue& placed, const Table& table);

// Returns this device's shard of a whole value, as a view if it is a contiguous piece. Requires:
// `whole` has the whole shape.
at::Tensor shard_of(const at::Tensor& whole,
                    const LoweredStage& stage,
                    const PlacedValue& placed,
                    const Table& table);

// The position of a shard: the value's placement in its stage, and its device's table.
struct ShardPlace {
  const PlacedValue* placed;
  const Table* table;
};

// Assembles the whole value from shards of one or more stages. Returns the first if the value is
// not cut. Leaves elements without a shard unset. Requires: shards have their local shapes.
at::Tensor assemble(const std::vector<at::Tensor>& shards, const std::vector<ShardPlace>& places);

// Returns whether the shards of one stage form the whole value. If owners divide it over pipelines
// (plan/owners.h), they are a share of it, or empty.
bool is_whole(const PlacedValue& placed, const std::vector<const Table*>& tables);

// The rows of a batch tensor that one device reads, by micro-batch. Accepts the global batch or, if
// `accept_own`, only the rows that this device needs (rows_of(stage, device)). Results may share
// the input's memory. Throws Error(kCaller) naming the key, the found and the expected shape.
class BatchSlicer {
 public:
  // `device` is an index into the mesh. Requires: `stage` outlives this.
  BatchSlicer(const LoweredStage& stage, int device, bool accept_own);
  std::vector<at::Tensor> slice(const PlacedValue& placed, const at::Tensor& given) const;

 private:
  const Table& table(size_t microbatch) const;
  bool is_own(const PlacedValue& placed, const at::Tensor& given) const;
  at::Tensor slice_own(const PlacedValue& placed,
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
