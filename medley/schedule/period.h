#pragma once

// Effect of in-flight counts on a pipeline in steady state, in closed form.

#include "medley/schedule/timer.h"

namespace medley {

// In the steady state of order_calls(in_flight), the interval between finished micro-batches is
//
//   P(N) = max( c,  max over i <= k of  (t_i + ... + t_k + r_i + ... + r_{k-1}) / (N_i - N_k + 1) )
//
// Stage i takes t_i forward and backward. The boundary after it has round trip r_i (both directions
// and twice the latency). A message occupies a link for at most c. After a backward, stage i waits
// for the stages up to k and back:
//
//   i   B_m F_{m+N_i}                          B_{m+N_i-N_k+1}      a loop that holds N_i - N_k + 1
//   k               F_{m+N_i} B_{m+N_i-N_k+1}                       micro-batches, forward once
//
// Every simple cycle of waits is one of these, a single stage (i = k), or a link. Two stages that
// both take P give the growth of H-1F1B, 1 + ceil(2c / t_max). For several micro-batch sizes, each
// time is the longest.

// Returns the smallest counts whose period is at most `period`: N_S = 1, and backwards
//
//   N_i = max over k > i of  N_k - 1 + ceil((t_i + ... + t_k + r_i + ... + r_{k-1}) / period)
//
// Requires: period > 0, and no stage and no link takes longer.
std::vector<int> counts_for_period(Nanoseconds period, const PipelineTimes& times);

// Returns the smallest counts of the shortest period within limits. Requires: limits has an entry
// of at least 1 for each stage.
std::vector<int> counts_within(const std::vector<int>& limits, const PipelineTimes& times);

}  // namespace medley
