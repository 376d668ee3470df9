#pragma once

#include <cstddef>
#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Checks the invariants of all passes and readers. Throws Error(kUs) with the op and the
// expectation. Ids are in range. Every value is defined once, before its use; results link to their
// producer. Input names are unique, symbols in range and sorted, sizes not negative. Outputs exist:
// one floating scalar loss (a sending stage's graph may have none), gradients of their parameters'
// types.
void verify(const Graph& graph);

// Limits of the text form, checked by verify() and parse_graph().
inline constexpr size_t kMaxRank = 64;     // dims of a tensor
inline constexpr size_t kMaxFactors = 64;  // symbols multiplied in a size
// Returns whether a name has letters, digits, "_", ".", no digit or "." first, and is not reserved.
bool is_symbol_name(std::string_view name);
// Returns whether `name` is namespace.op.overload of letters, digits and "_".
bool is_op_name(std::string_view name);

}  // namespace medley
