#pragma once

// The ops that may write their result over an operand without further readers. Used by the executor
// and by memory estimates.

#include <array>
#include <optional>
#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Pointwise ops, and others that write each element of the result after all reads of the same
// element of the operand.
struct Overwriting {
  std::string_view variant;  // the op's variant that overwrites operand 0
  bool pass_out = false;     // needs an out= argument; else it is in-place
  bool commutes = false;     // operand 1 may be overwritten instead
  bool contiguous = false;   // not for operands with gaps or permuted dims
};
std::optional<Overwriting> overwriting(std::string_view op);

// Returns the operands whose memory an op's result may take, the preferred one first, else kNone:
// tensors of the result's type that the op reads once. The caller checks that they die there and
// that their memory is unshared.
std::array<ValueId, 2> overwritable(const Graph& graph, const Op& op);

// Returns whether operand 1 of a sum or a difference enters unscaled: its factor, argument 2, is 1
// or absent.
bool is_unscaled(const Op& op);

}  // namespace medley
