#pragma once

// An op at concrete sizes: the key of its time, and its work. Knows nothing of times and devices.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// The work of an op for a cost model. `dtype`: of the arithmetic, that of the first floating
// result, else operand.
struct OpWork {
  WorkClass work_class = WorkClass::kMemory;
  Work work;
  DType dtype = DType::kF32;
  bool operator==(const OpWork&) const = default;
};
// `symbols`: values of the graph's symbols; `bf16_as`: dtype that replaces bf16.
OpWork op_work(const Graph& graph,
               const Op& op,
               const std::vector<int64_t>& symbols,
               DType bf16_as = DType::kBF16);

// Identifies ops that are measured once for all layers. The key has the op, the types of its
// operands and its other arguments in order, and the types of its results:
//
//   aten.sum.dim_IntList(f32[96,512], [0], false, none) -> f32[512]
//
// Sizes, offsets and numbers of random streams in the arguments are written "_": the types imply
// them, and they differ between shards and layers. These are the integers of ops whose local form
// has other arguments than the global op. Strides of convolutions stay.
struct SizedOp {
  std::string key;
  std::string op;  // "aten.mm.default"
  WorkClass work_class = WorkClass::kMemory;
  DType dtype = DType::kF32;  // dtype of the arithmetic
  Work work;
  bool operator==(const SizedOp&) const = default;
};
SizedOp sized_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

// Returns a hash of the key of sized_op() without writing it. Equal on every machine.
uint64_t key_hash(const Graph& graph,
                  const Op& op,
                  const std::vector<int64_t>& symbols,
                  DType bf16_as = DType::kBF16);
uint64_t key_hash(std::string_view key);

std::string_view class_name(WorkClass work_class);  // "matmul"

}  // namespace medley
