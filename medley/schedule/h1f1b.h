#pragma once

#include <optional>
#include <string_view>

#include "medley/schedule/timer.h"

namespace medley {

// H-1F1B: 1F1B with the in-flight count that each boundary needs (HARP,
// https://arxiv.org/abs/2509.24859). From the last stage, which has one, backwards:
//
//   N_S = 1      N_i = min(B, N_{i+1} + d_i)
//
// A micro-batch that leaves stage i returns two transfers after the later stages are done. To stay
// busy, stage i needs 2 c_i / t_max more in flight. A boundary with a transfer as long as a stage's
// time is overlapped with d = 3:
//
//   h1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 3
//   s0   F0 F1 F2 F3                   B0--- F4 B1---    B2---    B3---    B4---
//   0>1     0------- 1------- 2------- 3------- 4-------
//   0<1                       0------- 1------- 2------- 3------- 4-------
//   s1               F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
//
// Returns d = 1 + ceil(round_trip / t_max), which overlaps a boundary's transfers. `round_trip`:
// both directions and twice the latency; `t_max`: forward and backward time of the slowest stage.
// Requires: times are not negative.
int ideal_growth(Nanoseconds round_trip, Nanoseconds t_max);

// Returns d as in HARP's released code, c being the transfer in one direction:
//
//   1 inside a pool or if c < t_max / 10      2 if c < t_max / 2      else 3
//
// This trades time for less activation memory (table in docs/concepts/schedules.md). Requires: as
// above.
int published_growth(Nanoseconds c, Nanoseconds t_max, bool same_pool);

// Returns the counts of the two rules, at most all micro-batches. `t_max`: of the slowest stage by
// default. Ignores limits.
std::vector<int> ideal_in_flight(const ScheduleRequest& request,
                                 std::optional<Nanoseconds> t_max = {});
std::vector<int> published_in_flight(const ScheduleRequest& request,
                                     std::optional<Nanoseconds> t_max = {});

struct InFlight {
  std::vector<int> counts;
  std::string_view rule;  // origin: "ideal", "published", "memory", ...
  Nanoseconds finish;     // by the timer
};

// Returns the counts that finish first by the timer. Candidates are the two rules, the shortest
// period that memory allows (period.h), 1F1B, eager 1F1B and the memory limit, each capped. Then
// single stages change by one while that helps, in at most `max_timings` trials. Ties go to the
// fewest in flight. The result is never slower than 1F1B or eager 1F1B in the same memory.
//
// The period matters if memory is short: counts clipped at the limits leave no growth for later
// boundaries.
//
// Throws Error(kCaller) if a limit is below 1.
InFlight h1f1b(const ScheduleRequest& request, int max_timings = 100);

}  // namespace medley
