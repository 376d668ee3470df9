#pragma once

// Times each call and each message of a pipeline exactly, in whole ns and linear in the calls; the
// planner compares schedules by it. Stages are black boxes with given times. medley/sim executes
// real programs.

#include <vector>

#include "medley/base/units.h"
#include "medley/schedule/call_order.h"

namespace medley {

struct StageTimes {
  Nanoseconds forward, backward;
  // Part of `backward` for weight gradients, a call of its own if the order has such calls.
  Nanoseconds weights{};
};
// Boundary between a stage and the next. The directions are independent (full duplex); messages of
// one direction are sent in order. A message occupies the link for `forward` or `backward` and
// arrives `latency` later.
struct BoundaryTimes {
  Nanoseconds forward, backward;
  Nanoseconds latency{};
  Nanoseconds round_trip() const { return forward + backward + latency * 2; }
  bool operator==(const BoundaryTimes&) const = default;
};
struct MicrobatchTimes {
  std::vector<StageTimes> stages;
  std::vector<BoundaryTimes> boundaries;  // one fewer
};
// Micro-batches of one step may differ in size, each with its own times.
struct PipelineTimes {
  std::vector<MicrobatchTimes> sizes;
  std::vector<int> size_of;  // [micro-batch], into `sizes`

  size_t num_stages() const { return sizes[0].stages.size(); }
  int num_microbatches() const { return static_cast<int>(size_of.size()); }
};
// Returns times with micro-batches of equal size.
PipelineTimes equal_microbatches(MicrobatchTimes times, int microbatches);

// The input of every schedule.
struct ScheduleRequest {
  PipelineTimes times;
  std::vector<int> max_in_flight;  // [stage], by memory; empty: no limit
  std::vector<int> pools;          // [stage]; empty: each has its own
};

// Throws Error(kUs) for negative times, weights above backward, no stages, no micro-batches, sizes
// with other numbers of stages, or boundaries that are not one fewer.
void verify(const PipelineTimes& times);

struct TimeSpan {
  Nanoseconds begin, end;
  bool operator==(const TimeSpan&) const = default;
};
struct Timing {
  Nanoseconds finish;                                         // end of the last call
  std::vector<Nanoseconds> busy, idle;                        // [stage], sum to `finish`
  std::vector<std::vector<TimeSpan>> calls;                   // [stage], parallel to its order
  std::vector<std::vector<TimeSpan>> activations, gradients;  // [boundary]: while the link is
                                                              // occupied, in the order of sending
  // Returns the idle share of the stages' time.
  double bubble() const;
};

// Every call starts when the previous call on its stage has ended, its message has arrived and a
// slot for its own message is free (`slots` as in OrderLimits). With e_i(k) the end of the k-th
// call of stage i, of length p, and a its message's arrival,
//
//   e_i(k) = max(e_i(k-1), a) + p        l(n) = max(e, l(n-1)) + occupied        a = l(n) + latency
//
// e: end of the call that sends the n-th message of a link; l(n): end of its transmission.
// Requires: verify(order, microbatches, {.slots = slots}) and verify(times) pass.
Timing time_calls(const PipelineOrder& order,
                  const PipelineTimes& times,
                  const std::vector<int>& slots = {});

}  // namespace medley
