#pragma once

// Best-first search (A*) over the variables in order. Minima of unaries and edges bound the cost
// after the last chosen variable. Among assignments with equal choices next to the remaining
// variables, only the cheapest is followed. It is HAP's search (https://arxiv.org/abs/2401.05965),
// used as a baseline. Private to pbqp*.cpp.

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

struct SearchResult {
  std::vector<int32_t> choices;  // empty: no allowed one found
  int64_t lower = 0;             // kForbidden: none exists
};

// Requires: every variable of `core` has its unary. After the deadline the most promising
// assignment is completed greedily.
SearchResult search(const TablePool& pool, const Core& core, Clock::time_point deadline);

}  // namespace medley::pbqp
