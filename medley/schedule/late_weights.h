#pragma once

// How late the gradients of weights may come, in the orders of order_calls().

#include <vector>

#include "medley/schedule/timer.h"

namespace medley {

struct LateWeights {
  std::vector<int> counts;    // [stage], `late` of order_calls()
  Nanoseconds finish, whole;  // by the timer; `whole`: with none late
};

struct LateWeightsLimits {
  int timings = 60;  // beyond the first three; 0: nor the second of these
  double worth = 0;  // less of what it takes with none is not worth a look
};

// Returns the counts with which the timer finishes first, of those that keep to `most`: none; one
// for each stage before (zero bubble, https://arxiv.org/abs/2401.10241: with what it has in flight,
// every stage keeps as many micro-batches); one more, with which stages that take equally long are
// idle for the first forward passes only; and from the best of these with one more or one fewer, or
// none, on some stage, as long as that is better. Of equally fast ones, the fewest.
//
// Of a backward pass of 2, the weights take 1: the counts are [0, 2, 3], and of 18 are left 14.
//
//   1f1b: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0, weights 1
//   s0   F0 F1 F2       B0--- F3 B1--- B2--- B3---
//   s1      F0 F1    B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
//   s2         F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
//
// `after`: how long each stage updates behind its last call, which is part of what is timed: who
// makes its gradients late updates late. A stage whose weights take no time has none late.
// Requires: `in_flight` as of order_calls(), `most` an entry of at least 0 for each stage, 0 for
// the first.
LateWeights late_weights(const PipelineTimes& times,
                         const std::vector<int>& in_flight,
                         std::vector<int> most,
                         const std::vector<Nanoseconds>& after,
                         const LateWeightsLimits& limits = {});

}  // namespace medley
