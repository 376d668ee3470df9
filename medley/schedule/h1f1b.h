#pragma once

#include <optional>
#include <string_view>

#include "medley/schedule/timer.h"

namespace medley {

// H-1F1B: 1F1B with as many micro-batches in flight as each boundary needs, and no more
// (HARP, https://arxiv.org/abs/2509.24859). From the last stage, which has one, backwards:
//
//   N_S = 1      N_i = min(B, N_{i+1} + d_i)
//
// A micro-batch that leaves stage i is back two transfers after the stages behind it are done; to
// have work meanwhile, stage i needs 2 c_i / t_max more in flight. One boundary of a transfer as
// long as a stage's time, hidden with d = 3:
//
//   h1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 3
//   s0   F0 F1 F2 F3                   B0--- F4 B1---    B2---    B3---    B4---
//   0>1     0------- 1------- 2------- 3------- 4-------
//   0<1                       0------- 1------- 2------- 3------- 4-------
//   s1               F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
//
// Returns d = 1 + ceil(round_trip / t_max), what hides a boundary's transfers: `round_trip` is both
// directions and twice the latency, `t_max` the forward and backward time of the slowest stage.
// Requires: times are not negative.
int ideal_growth(Nanoseconds round_trip, Nanoseconds t_max);

// Returns d as HARP's released code has it, c being the transfer in one direction:
//
//   1 inside a pool or if c < t_max / 10      2 if c < t_max / 2      else 3
//
// which gives up some time for fewer activations (the table in docs/concepts/schedules.md).
// Requires: as above.
int published_growth(Nanoseconds c, Nanoseconds t_max, bool same_pool);

// Returns the counts that the two rules give, at most all micro-batches. `t_max` is that of the
// slowest stage unless given. Limits are not looked at.
std::vector<int> ideal_in_flight(const ScheduleRequest& request,
                                 std::optional<Nanoseconds> t_max = {});
std::vector<int> published_in_flight(const ScheduleRequest& request,
                                     std::optional<Nanoseconds> t_max = {});

struct InFlight {
  std::vector<int> counts;
  std::string_view rule;  // where they are from: "ideal", "published", "memory", ...
  Nanoseconds finish;     // by the timer
};

// Returns the counts with which the timer finishes first among those of the two rules, of the
// shortest period that memory allows (period.h), of 1F1B, of eager 1F1B and of all that there is
// room for, each held to the limits; and then, as long as that is better, one more or one fewer on
// some stage, `max_timings` trials at most. Of equally fast ones, the fewest in flight. So it is
// never slower than 1F1B or eager 1F1B in the same memory.
//
// The period matters as soon as memory is short: counts cut off at the limits leave nothing in
// flight for the boundaries further on.
//
// Throws Error(kCaller) if a limit is below 1.
InFlight h1f1b(const ScheduleRequest& request, int max_timings = 100);

}  // namespace medley
