#pragma once

// An op at concrete sizes: under which key its time is filed, and what it has to do. Knows nothing
// of times and devices.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

// What an op is to a cost model. `dtype`: of the arithmetic, that of the first floating result,
// else operand.
struct OpWork {
  WorkClass work_class = WorkClass::kMemory;
  Work work;
  DType dtype = DType::kF32;
  bool operator==(const OpWork&) const = default;
};
// `symbols`: the values of the graph's symbols; `bf16_as`: what is computed in the place of bf16.
OpWork op_work(const Graph& graph,
               const Op& op,
               const std::vector<int64_t>& symbols,
               DType bf16_as = DType::kBF16);

// What is measured once, however many layers repeat it. The key has the op, the types of its
// operands and its other arguments in order, and the types of its results:
//
//   aten.sum.dim_IntList(f32[96,512], [0], false, none) -> f32[512]
//
// Sizes, offsets and numbers of random streams among the arguments say nothing that the types do
// not and differ from shard to shard and layer to layer: they are written "_". They are the
// integers of ops whose local form has other arguments than the op of the whole graph; those of
// convolutions are strides, and stay.
struct SizedOp {
  std::string key;
  std::string op;  // "aten.mm.default"
  WorkClass work_class = WorkClass::kMemory;
  DType dtype = DType::kF32;  // of the arithmetic
  Work work;
  bool operator==(const SizedOp&) const = default;
};
SizedOp sized_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

// Of the key of sized_op(), without writing it. Equal on every machine.
uint64_t key_hash(const Graph& graph,
                  const Op& op,
                  const std::vector<int64_t>& symbols,
                  DType bf16_as = DType::kBF16);
uint64_t key_hash(std::string_view key);

std::string_view class_name(WorkClass work_class);  // "matmul"

}  // namespace medley
