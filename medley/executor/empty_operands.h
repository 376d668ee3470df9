#pragma once

// The result of an op if a shard has no elements. Some kernels of PyTorch raise or crash for empty
// operands. A sum over no elements is zero, so most results are. A table lists the exceptions.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

struct CallKernel {};    // it is safe, or no operand is empty
struct FirstOperand {};  // no element is written into it
struct DropEmpty {};     // a list operand: without its empty elements
struct FillWith {
  double value = 0;
};
struct AddBias {};      // a convolution over no channels
struct SumGradient {};  // its backward: the bias has a gradient nevertheless
using EmptyRule = std::variant<CallKernel, FirstOperand, DropEmpty, FillWith, AddBias, SumGradient>;

EmptyRule empty_rule(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

bool is_empty(const Graph& graph, ValueId value, const std::vector<int64_t>& symbols);

}  // namespace medley
