#pragma once

// Depths of deferred weight gradients, in the orders of order_calls().

#include <vector>

#include "medley/schedule/timer.h"

namespace medley {

struct DeferredWeights {
  std::vector<int> counts;    // [stage], `late` of order_calls()
  Nanoseconds finish, whole;  // by the timer; `whole`: without deferral
};

struct DeferredWeightsLimits {
  int timings = 60;  // beyond the first three; 0: also without the second
  double worth = 0;  // least gain worth a search, as a share of `whole`
};

// Returns the counts up to `most` that finish first by the timer. Candidates are 0; one per earlier
// stage (zero bubble, https://arxiv.org/abs/2401.10241), so that all stages store equally many
// micro-batches; and one more. With the last, equal stages are idle only for the first forwards.
// From the best, single stages change by one or to 0 while that helps. Ties go to the fewest.
//
// With weights 1 of a backward of 2, the counts are [0, 2, 3] and the time falls from 18 to 14.
//
//   1f1b: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0, weights 1
//   s0   F0 F1 F2       B0--- F3 B1--- B2--- B3---
//   s1      F0 F1    B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
//   s2         F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
//
// `after`: time of each stage's update after its last call, included in the timed result: deferral
// delays updates. Stages without weight time defer none. Requires: `in_flight` as of order_calls(),
// `most` an entry of at least 0 for each stage, 0 for the first.
DeferredWeights deferred_weights(const PipelineTimes& times,
                                 const std::vector<int>& in_flight,
                                 std::vector<int> most,
                                 const std::vector<Nanoseconds>& after,
                                 const DeferredWeightsLimits& limits = {});

}  // namespace medley
