#pragma once

#include <vector>

namespace medley {

// 1F1B with one more micro-batch in flight per boundary (eager 1F1B,
// https://arxiv.org/abs/2211.05322): min(B, 2(S - i) - 1) on stage i. Transfers up to half of a
// stage's time are hidden, at nearly twice the memory.
//
//   eager-1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 1
//   s0   F0 F1 F2          B0--- F3 B1--- F4 B2---    B3---    B4---
//   0>1     0- 1- 2-                3-       4-
//   0<1                 0-       1-       2-       3-       4-
//   s1         F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
//
// Longer ones are not:
//
//   eager-1f1b: 2 stages, 5 micro-batches, forward 1, backward 2, transfer 3
//   s0   F0 F1 F2                      B0--- F3 B1--- F4 B2---             B3---    B4---
//   0>1     0------- 1------- 2-------          3------- 4-------
//   0<1                       0------- 1------- 2-------          3------- 4-------
//   s1               F0 B0--- F1 B1--- F2 B2---          F3 B3--- F4 B4---
//
// Requires: stages >= 1, microbatches >= 1.
std::vector<int> eager_one_f_one_b(int stages, int microbatches);

}  // namespace medley
