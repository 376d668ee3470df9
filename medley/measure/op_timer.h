#pragma once

// Measures how long one op takes on one device: runs it alone, over the seams that a run uses, and
// reads the clock. What the device is, real or emulated, is not known here.
//
//   warm up | read clock, run, wait for the device, read clock | ... | median
//
// Operands stay where they are from run to run, so small ones are in a cache, as they are in a run
// that has just produced them.

#include <functional>

#include "medley/base/clock.h"
#include "medley/measure/single_op.h"
#include "medley/runtime/executor.h"

namespace medley {

struct OpTimer {
  Executor& executor;
  Clock& clock;
  int device = 0;  // of the cluster, for the emulation
  // Makes an operand of this concrete type. An integer is an index: at least 0, below `bound`.
  std::function<Buffer(const TensorType& type, int64_t bound)> make_operand;
  // Returns once everything that was run is done; empty: it is when run() returns.
  std::function<void()> synchronize = {};
  int launches = 1;  // between two readings of the clock
  int warm_ups = 2;
  int least = 5;  // repetitions
  int most = 100;
  Nanoseconds enough{20'000'000};  // no more repetitions than `least` after so long
  // Above 0: the median of three means over so long, whatever the numbers above say. For a
  // processor that is taken away for a part of every period: short ops fit between, and their
  // median knows nothing of it.
  Nanoseconds window{};
};

struct MeasuredTime {
  Nanoseconds time;  // median, of repetitions or of windows
  int repetitions = 0;
};

// Throws Error if the op cannot be run: it does not fit into memory, or has no kernel.
MeasuredTime measure(const OpTimer& timer, const Graph& single);

// Returns the number below which integer operands of a single op are valid indices, for whatever
// they index.
int64_t index_bound(const Graph& single);

}  // namespace medley
