#pragma once

// The lifted dual with a reduced-cost window: message passing bounds every choice from below. Few
// choices are near the bound, and elimination is exact on them. Private to pbqp*.cpp.
//
//   best of the window <= bound + tau   =>   it is the best of all: choices outside of the window
//                                            cost more than bound + tau

#include <limits>

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

struct LiftedResult {
  std::vector<int32_t> choices;  // as the problem counts them; empty: none found
  int64_t cost = kForbidden, lower = 0;
  int64_t largest_table = 0, work = 0;
};

// Requires: `core` has no dead ends. Without choices, lower >= kForbidden proves that none exist.
// Stops after `rounds` rounds of iterations and windows.
LiftedResult solve_lifted(Reducer& reducer,
                          const Core& core,
                          const PbqpOptions& options,
                          Clock::time_point deadline,
                          int rounds = std::numeric_limits<int>::max());

}  // namespace medley::pbqp
