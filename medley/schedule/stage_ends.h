#pragma once

// The end times of the stages of a pipeline, found without timing every micro-batch. Searches for
// an order need no more.

#include <vector>

#include "medley/schedule/timer.h"

namespace medley {

struct StageEnds {
  Nanoseconds finish;
  std::vector<Nanoseconds> last, busy;  // [stage] when its last call ends; the time of its calls
};

// Returns, to the nanosecond, what time_calls(order_calls(in_flight, microbatches, late), times)
// says of the stages. There are no slots.
//
// Round r of stage i is its forward on micro-batch r + N_i - 1, its backward on r and the weights
// that follow it. No call waits for a later round:
//
//   in_flight [3, 1]   round   -2   -1    0     1     2     3
//                      s0      F0   F1   F2B0  F3B1    B2    B3
//                      s1                F0B0  F1B1  F2B2  F3B3
//
// The state of a round: when the calls of each stage have ended and each link is free, and the
// arrivals of messages that are not read yet. If it is that of c rounds before, T later, then each
// further c rounds take T, as long as micro-batches are of one size: they are skipped. So the cost
// is that of the warm-up, of the rounds until the state repeats and of the drain, O(stages) each.
//
// Requires: counts are at least 1 and do not grow, verify(times) passes.
StageEnds time_ends(const std::vector<int>& in_flight,
                    const PipelineTimes& times,
                    const std::vector<int>& late = {});

}  // namespace medley
