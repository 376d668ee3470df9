#pragma once

#include <vector>

namespace medley {

// All forwards, then all backwards (GPipe, https://arxiv.org/abs/1811.06965). Every stage has all
// micro-batches in flight.
//
//   gpipe: 3 stages, 4 micro-batches, forward 1, backward 2, transfer 0
//   s0   F0 F1 F2 F3                   B0--- B1--- B2--- B3---
//   s1      F0 F1 F2 F3          B0--- B1--- B2--- B3---
//   s2         F0 F1 F2 F3 B0--- B1--- B2--- B3---
//
// Requires: stages >= 1, microbatches >= 1.
std::vector<int> gpipe(int stages, int microbatches);

}  // namespace medley
