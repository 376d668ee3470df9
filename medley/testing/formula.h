#pragma once

// What a step of a pipeline takes, without its schedule: estimates, and a bound.

#include "medley/schedule/timer.h"

namespace medley {

// With t_i the forward and backward time of stage i for one micro-batch, c_i the transfer over the
// boundary after it in one direction, B micro-batches:
enum class PipelineFormula {
  kReleased,    // sum(t + c)  + (B-1) max(t, c)    HARP's released code, c with its latency
  kPaper,       // sum(t + 2c) + (B-1) max(t)       HARP, https://arxiv.org/abs/2509.24859
  kOverlapped,  // sum(t + 2c) + (B-1) max(t, c)    ours: the paper's where transfers are hidden,
                // and
                //                                  right where a link is the bottleneck
};
// 2c is what a round trip takes: both directions and twice the latency. An estimate, no bound: a
// slow first stage goes on while the last micro-batch is at the others.
// Requires: microbatches >= 1.
Nanoseconds estimate_pipeline(PipelineFormula formula,
                              const MicrobatchTimes& times,
                              int microbatches);

// Returns what no order can beat, whatever its counts: of every stage and every direction of a
// boundary, the way of the first micro-batch to it, its own work for all of them, and the way of
// the last one back to the first stage; and the round trip of one micro-batch. Requires:
// verify(times) passes.
Nanoseconds lower_bound(const PipelineTimes& times);

}  // namespace medley
