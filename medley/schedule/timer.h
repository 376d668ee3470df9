#pragma once

// When each call of a pipeline runs and each message travels, exactly and in whole nanoseconds, in
// time linear in the calls: the planner's judge of schedules. Its stages are black boxes that take
// given times; medley/sim executes real programs.

#include <vector>

#include "medley/base/units.h"
#include "medley/schedule/call_order.h"

namespace medley {

struct StageTimes {
  Nanoseconds forward, backward;
  // Of `backward`, the gradients of weights, which a call of their own makes where the order has
  // such calls.
  Nanoseconds weights{};
};
// Between a stage and the next. The directions do not disturb each other (full duplex); messages of
// one direction follow each other in the order in which they were sent. A message occupies the link
// for `forward` or `backward` and arrives `latency` later.
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
// Micro-batches of one step may have several sizes, each with its own times.
struct PipelineTimes {
  std::vector<MicrobatchTimes> sizes;
  std::vector<int> size_of;  // [micro-batch], into `sizes`

  size_t num_stages() const { return sizes[0].stages.size(); }
  int num_microbatches() const { return static_cast<int>(size_of.size()); }
};
// All micro-batches of one size.
PipelineTimes equal_microbatches(MicrobatchTimes times, int microbatches);

// The input of every schedule.
struct ScheduleRequest {
  PipelineTimes times;
  std::vector<int> max_in_flight;  // [stage], what memory has room for; empty: no limit
  std::vector<int> pools;          // [stage]; empty: each stage is one of its own
};

// Throws Error(kUs) for times below 0, weights above backward, no stages, no micro-batches, sizes
// with other numbers of stages, or boundaries that are not one fewer.
void verify(const PipelineTimes& times);

struct TimeSpan {
  Nanoseconds begin, end;
  bool operator==(const TimeSpan&) const = default;
};
struct Timing {
  Nanoseconds finish;                                         // of the last call
  std::vector<Nanoseconds> busy, idle;                        // [stage], sum to `finish`
  std::vector<std::vector<TimeSpan>> calls;                   // [stage], parallel to its order
  std::vector<std::vector<TimeSpan>> activations, gradients;  // [boundary]: while the link is
                                                              // occupied, in the order of sending
  // Idle time of the stages, as a share of their time.
  double bubble() const;
};

// Every call starts as soon as the call before it on its stage has ended, its message has arrived
// and there is a slot for what it sends (`slots` as in OrderLimits). With e_i(k) the end of the
// k-th call of stage i, which takes p, and a its message's arrival,
//
//   e_i(k) = max(e_i(k-1), a) + p        l(n) = max(e, l(n-1)) + occupied        a = l(n) + latency
//
// where e is the end of the call that sends the n-th message of a link, and l(n) when it has left.
// Requires: verify(order, microbatches, {.slots = slots}) and verify(times) pass.
Timing time_calls(const PipelineOrder& order,
                  const PipelineTimes& times,
                  const std::vector<int>& slots = {});

}  // namespace medley
