#pragma once

// A device without bf16 computes in another type what a graph says in bf16. Knows no devices.

#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Passes on the gradient of the loss, at the beginning of the backward phase of graphs captured
// under autocast: f16 needs it scaled there.
inline constexpr std::string_view kLossScale = "medley.loss_scale.default";

inline DType replace_bf16(DType dtype, DType as) { return dtype == DType::kBF16 ? as : dtype; }
inline TensorType replace_bf16(TensorType type, DType as) {
  type.dtype = replace_bf16(type.dtype, as);
  return type;
}
// The types among its arguments.
void replace_bf16(Op& op, DType as);
void replace_bf16(Graph& graph, DType as);

// Whether any value of it is in bf16.
bool has_bf16(const Graph& graph);

}  // namespace medley
