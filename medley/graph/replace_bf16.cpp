#include "medley/graph/replace_bf16.h"

#include <algorithm>

namespace medley {

void replace_bf16(Op& op, DType as) {
  for (Argument& argument : op.arguments)
    if (auto* dtype = std::get_if<DType>(&argument)) *dtype = replace_bf16(*dtype, as);
}

void replace_bf16(Graph& graph, DType as) {
  for (Value& value : graph.values) value.type.dtype = replace_bf16(value.type.dtype, as);
  for (Op& op : graph.ops) replace_bf16(op, as);
}

bool has_bf16(const Graph& graph) {
  return std::ranges::any_of(graph.values,
                             [](const Value& value) { return value.type.dtype == DType::kBF16; });
}

}  // namespace medley
