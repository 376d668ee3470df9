#pragma once

// Which ops may write their result over an operand that nobody needs any more. The executor does
// so, and whoever counts memory counts with it.

#include <array>
#include <optional>
#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Pointwise ops, and others of which every element of the result is written after all reads of the
// same element of the operand.
struct Overwriting {
  std::string_view variant;  // of the op: what writes over operand 0
  bool pass_out = false;     // it is told so by an argument more, else it does so by itself
  bool commutes = false;     // operand 1 may be overwritten just as well
  bool contiguous = false;   // an operand with gaps or turned dims may not
};
std::optional<Overwriting> overwriting(std::string_view op);

// Returns the operands of an op whose place its result may take, the one to prefer first, else
// kNone: tensors of the type of the result that the op reads once. That they die there, and that
// nobody else has their memory, is left to whoever asks.
std::array<ValueId, 2> overwritable(const Graph& graph, const Op& op);

// Whether operand 1 of a sum or a difference goes into it as it is: argument 2, its factor, is 1 or
// is not there.
bool is_unscaled(const Op& op);

}  // namespace medley
