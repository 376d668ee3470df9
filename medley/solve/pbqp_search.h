#pragma once

// Best-first search (A*) over the variables in order. What is behind the last variable chosen is
// bounded by the minima of its unaries and edges; of assignments with the same choices next to what
// is behind, the cheapest alone is followed. HAP searches programs like this
// (https://arxiv.org/abs/2401.05965); here it is the baseline. Private to pbqp*.cpp.

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

struct SearchResult {
  std::vector<int32_t> choices;  // empty if none allowed was found
  int64_t lower = 0;             // kForbidden if there is none
};

// Requires: every variable of `core` has its unary. When time is up the most promising assignment
// is completed greedily.
SearchResult search(const TablePool& pool, const Core& core, Clock::time_point deadline);

}  // namespace medley::pbqp
