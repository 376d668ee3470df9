#pragma once

// What an op gives if a shard has no elements. PyTorch's kernels are not trusted with empty
// operands: some raise, some kill the process. A sum over nothing is zero, so most results are; the
// exceptions are a table.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

struct CallKernel {};    // it is safe, or nothing is empty
struct FirstOperand {};  // nothing is written into it
struct DropEmpty {};     // a list operand: without the elements that are empty
struct FillWith {
  double value = 0;
};
struct AddBias {};      // a convolution over no channels
struct SumGradient {};  // its backward: the gradient of the bias is there all the same
using EmptyRule = std::variant<CallKernel, FirstOperand, DropEmpty, FillWith, AddBias, SumGradient>;

EmptyRule empty_rule(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

bool is_empty(const Graph& graph, ValueId value, const std::vector<int64_t>& symbols);

}  // namespace medley
