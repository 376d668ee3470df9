#pragma once

// A value that one stage makes and another reads, with its layout in both. Every sending device
// sends every receiving device the elements that both have:
//
//   stage 0, rows 3 + 1        stage 1, rows 2 + 2        messages
//   device a  [ 0 1 2 ]        device c  [ 0 1 ]          a -> c  0 1     a -> d  2
//   device b  [ 3 ]            device d  [ 2 3 ]          b -> d  3
//
// Either side cuts one dim, possibly not the same. A stage that has the whole value cuts it for
// sending, so that each element crosses the link between the stages once.

#include <string>
#include <vector>

#include "medley/graph/dtype.h"
#include "medley/program/symbols.h"
#include "medley/sharding/placement.h"

namespace medley {

struct TransferEnd {
  int dim = -1;  // the cut dim, at its outermost factor; -1: one element, on the first device
  Placement
      placement;  // its placement, in the stage's own parts; axis 1 cuts the remainder of axis 0
  Size full;      // outermost factor of that dim
  SymbolTable::RemoteDivision division;  // the part, for the other end
  std::vector<int> devices;              // in the cluster
};

struct Crossing {
  std::string name;  // the sent output and the received input
  TransferEnd from, to;
  int lane = 0, depth = 1;    // as in a Communication
  DType wire = DType::kBF16;  // exchange type of bf16 values
  bool once = false;          // at the end of each step: a buffer's new value
};

}  // namespace medley
