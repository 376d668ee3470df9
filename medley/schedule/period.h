#pragma once

// What in-flight counts do to a pipeline once it is full, in closed form.

#include "medley/schedule/timer.h"

namespace medley {

// Once the pipeline of order_calls(in_flight) is full, a micro-batch leaves it every
//
//   P(N) = max( c,  max over i <= k of  (t_i + ... + t_k + r_i + ... + r_{k-1}) / (N_i - N_k + 1) )
//
// t_i being the forward and backward time of stage i, r_i the round trip over the boundary after it
// (both directions and twice the latency), c the longest time for which a message occupies a link.
// Why: what stage i does after a backward waits for the stages up to k and back,
//
//   i   B_m F_{m+N_i}                          B_{m+N_i-N_k+1}      a loop that holds N_i - N_k + 1
//   k               F_{m+N_i} B_{m+N_i-N_k+1}                       micro-batches, forward once
//
// and every simple loop of waits is one of these, a stage alone (i = k), or a link. Two stages that
// both take P give the growth of H-1F1B, 1 + ceil(2c / t_max).
//
// Returns P, rounded up to whole nanoseconds. Of several sizes of micro-batches, each time is the
// longest. Requires: counts do not grow along the pipeline.
Nanoseconds steady_period(const std::vector<int>& in_flight, const PipelineTimes& times);

// Returns the smallest counts whose period is at most `period`: N_S = 1, and from there backwards
//
//   N_i = max over k > i of  N_k - 1 + ceil((t_i + ... + t_k + r_i + ... + r_{k-1}) / period)
//
// Requires: period > 0, and no stage and no link takes longer.
std::vector<int> counts_for_period(Nanoseconds period, const PipelineTimes& times);

// Returns the smallest counts of the shortest period for which they are within limits.
// Requires: limits has an entry of at least 1 for each stage.
std::vector<int> counts_within(const std::vector<int>& limits, const PipelineTimes& times);

}  // namespace medley
