#pragma once

#include <cstddef>
#include <string_view>

#include "medley/graph/graph.h"

namespace medley {

// Checks what every pass and every reader relies on, and throws Error(kUs) naming the op and what
// was expected: ids in range, every value defined once and before its use, results linked to their
// producer, unique input names, symbols in range and sorted, sizes not negative, outputs that
// exist: one loss that is a floating scalar (the graph of a stage that sends may have none), each
// gradient of the type of its parameter.
void verify(const Graph& graph);

// What the text form can hold; verify() and parse_graph() both insist on it.
inline constexpr size_t kMaxRank = 64;     // dims of a tensor
inline constexpr size_t kMaxFactors = 64;  // symbols multiplied in a size
// Letters, digits, "_" and ".", a letter or "_" first, and no word of the text form.
bool is_symbol_name(std::string_view name);
// namespace.op.overload of letters, digits and "_".
bool is_op_name(std::string_view name);

}  // namespace medley
