#pragma once

// End times of the stages of a pipeline, without timing every micro-batch. Searches for an order
// need no more.

#include <vector>

#include "medley/schedule/timer.h"

namespace medley {

struct StageEnds {
  Nanoseconds finish;
  std::vector<Nanoseconds> last, busy;  // [stage] end of its last call; total time of its calls
};

// Returns exactly the stage times of time_calls(order_calls(in_flight, microbatches, late), times).
// There are no slots.
//
// Round r of stage i is its forward on micro-batch r + N_i - 1, its backward on r and the weights
// after it. No call waits for a later round:
//
//   in_flight [3, 1]   round   -2   -1    0     1     2     3
//                      s0      F0   F1   F2B0  F3B1    B2    B3
//                      s1                F0B0  F1B1  F2B2  F3B3
//
// The state of a round consists of the end of each stage's calls, the time at which each link is
// free, and arrivals of unread messages. If it equals the state c rounds before, T later, each
// further c rounds of equal micro-batches take T and are skipped. The cost is O(stages) per round
// of warm-up, first repetition and drain.
//
// Requires: counts are at least 1 and do not grow, verify(times) passes.
StageEnds time_ends(const std::vector<int>& in_flight,
                    const PipelineTimes& times,
                    const std::vector<int>& late = {});

}  // namespace medley
