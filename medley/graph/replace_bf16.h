#pragma once

// Replaces bf16 in a graph for devices that lack it. Knows no devices.

#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Passes on the gradient of the loss, first in the backward phase of graphs captured under
// autocast. For f16 it scales that gradient.
inline constexpr std::string_view kLossScale = "medley.loss_scale.default";

inline DType replace_bf16(DType dtype, DType as) { return dtype == DType::kBF16 ? as : dtype; }
inline TensorType replace_bf16(TensorType type, DType as) {
  type.dtype = replace_bf16(type.dtype, as);
  return type;
}
// Replaces the dtypes among its arguments.
void replace_bf16(Op& op, DType as);
void replace_bf16(Graph& graph, DType as);

// Returns whether any value of it is in bf16.
bool has_bf16(const Graph& graph);

}  // namespace medley
