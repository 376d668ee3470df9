#pragma once

// The step time of a pipeline without its schedule: estimates, and a bound.

#include "medley/schedule/timer.h"

namespace medley {

// t_i is the forward and backward time of stage i for one micro-batch, c_i the transfer time over
// the boundary after it in one direction, B the number of micro-batches:
enum class PipelineFormula {
  kReleased,    // sum(t + c)  + (B-1) max(t, c)    HARP's released code, c with its latency
  kPaper,       // sum(t + 2c) + (B-1) max(t)       HARP, https://arxiv.org/abs/2509.24859
  kOverlapped,  // sum(t + 2c) + (B-1) max(t, c)    ours: also right if a link is the bottleneck
};
// Estimates a step, with 2c a round trip: both directions and twice the latency. It is no bound: a
// slow first stage continues while the last micro-batch is at the others. Requires: microbatches >=
// 1.
Nanoseconds estimate_pipeline(PipelineFormula formula,
                              const MicrobatchTimes& times,
                              int microbatches);

// Returns a lower bound for any order and counts. For every stage and boundary direction: the first
// micro-batch's way to it, its work for all micro-batches, and the last one's way back to the first
// stage. Also the round trip of one micro-batch. Requires: verify(times) passes.
Nanoseconds lower_bound(const PipelineTimes& times);

}  // namespace medley
