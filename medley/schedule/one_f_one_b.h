#pragma once

#include <vector>

namespace medley {

// One forward, one backward (PipeDream-flush, https://arxiv.org/abs/2006.09503). Stage i has
// min(B, S - i) of B micro-batches in flight, S stages: the fewest that keep all stages busy while
// transfers take no time. As early as GPipe, with less memory:
//
//   1f1b: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0
//   s0   F0 F1 F2             B0--- F3 B1---    B2---    B3---
//   s1      F0 F1       B0--- F2 B1--- F3 B2---    B3---
//   s2         F0 B0--- F1 B1--- F2 B2--- F3 B3---
//
// Transfers are waited for, one per micro-batch:
//
//   1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 1
//   s0   F0 F1             B0--- F2 B1--- F3       B2--- F4 B3---          B4---
//   0>1     0- 1-                   2-       3-             4-
//   0<1                 0-       1-             2-       3-             4-
//   s1         F0 B0--- F1 B1---       F2 B2--- F3 B3---       F4 B4---
//
// Requires: stages >= 1, microbatches >= 1.
std::vector<int> one_f_one_b(int stages, int microbatches);

}  // namespace medley
