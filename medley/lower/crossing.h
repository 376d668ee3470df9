#pragma once

// A value that one stage makes and another reads, as both have it on their devices. Every device of
// the one sends every device of the other what both have of it:
//
//   stage 0, rows 3 + 1        stage 1, rows 2 + 2        messages
//   device a  [ 0 1 2 ]        device c  [ 0 1 ]          a -> c  0 1     a -> d  2
//   device b  [ 3 ]            device d  [ 2 3 ]          b -> d  3
//
// It is cut in one dim on either side, which need not be the same. A stage that has it whole cuts
// it for the way, so that nothing travels twice over the link between the stages.

#include <string>
#include <vector>

#include "medley/graph/dtype.h"
#include "medley/program/symbols.h"
#include "medley/sharding/state.h"

namespace medley {

struct TransferEnd {
  int dim = -1;  // that is cut, at its outermost factor; -1: a tensor of one
                 // element, which the first device has
  State state;   // that says so, in the stage's own parts; axis 1 cuts what
                 // axis 0 has left of the same dim
  Size full;     // the outermost factor of that dim
  SymbolTable::RemoteDivision division;  // the part, for the other end
  std::vector<int> devices;              // of the cluster
};

struct Crossing {
  std::string name;  // of the output that is sent and the input that is received
  TransferEnd from, to;
  int lane = 0, depth = 1;    // as of a Communication
  DType wire = DType::kBF16;  // what is bf16 travels as this
  bool once = false;          // a step, at its end: the new value of a buffer
};

}  // namespace medley
