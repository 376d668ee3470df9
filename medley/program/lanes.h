#pragma once

// In which order a stage receives what other stages send (Communication::lane): a pure function of
// the program. Knows nothing of buffers.

#include <map>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// One transfer that is awaited in a step.
struct Receipt {
  size_t call = 0;  // in which it is awaited
  size_t step = 0;  // of the function of that call
  int communication = 0;
};

//   calls            F0    F1    B0    F2 ...      lane 0, two values a micro-batch, depth 2
//   awaits           a b   a b         a b
//   posted ahead  a0 b0
//                    a1 b1 ...                     one more each time that one has been awaited
//
// By lane, in the order in which they are sent.
std::map<int, std::vector<Receipt>> receipts(const LoweredStage& stage);

}  // namespace medley
