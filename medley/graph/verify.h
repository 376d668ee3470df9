#pragma once

#include "medley/graph/graph.h"

namespace medley {

// Checks what every pass and every reader relies on, and throws Error(kUs) naming the op and what was expected:
// ids in range, every value defined once and before its use, results linked to their producer, unique input names, symbols in range
// and sorted, sizes not negative, outputs that exist: one loss that is a floating scalar, each gradient of the type of its parameter.
void verify(const Graph& graph);

}  // namespace medley
