#pragma once

// The frame for the kMicrobatch values of each call of a step, and the values left in it at the
// end: a pure function of the program. Knows nothing of buffers.

#include "medley/program/calls.h"

namespace medley {

// The first call of a micro-batch takes a frame, and its last call returns it:
//
//   calls    F0 F1 B0 F2 B1 B2 U
//   frame     0  1  0  0  1  0 0      at most two micro-batches are in flight
//   begins    x  x     x       x
//   ends            x     x  x x
//
// The update counts as a micro-batch of its own.
struct FrameUse {
  int frame = 0;
  bool begins = false, ends = false;
  std::vector<ValueId> leftovers;  // at the end: kMicrobatch values that no step has freed
};

struct FrameSchedule {
  int num_frames = 0;
  std::vector<FrameUse> uses;  // parallel to LoweredStage::calls
};

FrameSchedule schedule_frames(const LoweredStage& stage);

}  // namespace medley
