#pragma once

// Schedules whose counts depend only on the numbers of stages and micro-batches. Requires of all:
// both are at least 1.

#include <vector>

namespace medley {

// All forwards, then all backwards (GPipe, https://arxiv.org/abs/1811.06965). Every stage has all
// micro-batches in flight.
//
//   gpipe: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0
//   s0   F0 F1 F2 F3                   B0--- B1--- B2--- B3---
//   s1      F0 F1 F2 F3          B0--- B1--- B2--- B3---
//   s2         F0 F1 F2 F3 B0--- B1--- B2--- B3---
std::vector<int> gpipe(int stages, int microbatches);

// One forward, one backward (PipeDream-flush, https://arxiv.org/abs/2006.09503). Stage i of S has
// min(B, S - i) of B micro-batches in flight, the fewest that keep all stages busy if transfers
// take no time. As fast as GPipe, with less memory:
//
//   1f1b: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0
//   s0   F0 F1 F2             B0--- F3 B1---    B2---    B3---
//   s1      F0 F1       B0--- F2 B1--- F3 B2---    B3---
//   s2         F0 B0--- F1 B1--- F2 B2--- F3 B3---
//
// Transfers are exposed, one per micro-batch:
//
//   1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 1
//   s0   F0 F1             B0--- F2 B1--- F3       B2--- F4 B3---          B4---
//   0>1     0- 1-                   2-       3-             4-
//   0<1                 0-       1-             2-       3-             4-
//   s1         F0 B0--- F1 B1---       F2 B2--- F3 B3---       F4 B4---
std::vector<int> one_f_one_b(int stages, int microbatches);

// 1F1B with one more micro-batch in flight per boundary (eager 1F1B,
// https://arxiv.org/abs/2211.05322): min(B, 2(S - i) - 1) on stage i. Overlaps transfers up to half
// of a stage's time, at nearly twice the memory.
//
//   eager-1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 1
//   s0   F0 F1 F2          B0--- F3 B1--- F4 B2---    B3---    B4---
//   0>1     0- 1- 2-                3-       4-
//   0<1                 0-       1-       2-       3-       4-
//   s1         F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
//
// Longer transfers are exposed:
//
//   eager-1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 3
//   s0   F0 F1 F2                      B0--- F3 B1--- F4 B2---             B3---    B4---
//   0>1     0------- 1------- 2-------          3------- 4-------
//   0<1                       0------- 1------- 2-------          3------- 4-------
//   s1               F0 B0--- F1 B1--- F2 B2---          F3 B3--- F4 B4---
std::vector<int> eager_one_f_one_b(int stages, int microbatches);

}  // namespace medley
