#pragma once

// Measures the time of one op on one device: runs it alone, over the interfaces of a run, and reads
// the clock. Works for real and emulated devices.
//
//   warm up | read clock, run, wait for the device, read clock | ... | median
//
// Operands keep their memory between runs, so small ones are in a cache, as after their producer in
// a run.

#include <functional>

#include "medley/base/clock.h"
#include "medley/measure/single_op.h"
#include "medley/runtime/executor.h"

namespace medley {

struct OpTimer {
  Executor& executor;
  Clock& clock;
  int device = 0;  // in the cluster, for the emulation
  // Makes an operand of this concrete type. An integer is an index: at least 0, below `bound`.
  std::function<Buffer(const TensorType& type, int64_t bound)> make_operand;
  // Returns after all started work is done. Empty: run() is synchronous.
  std::function<void()> synchronize = {};
  int launches = 1;  // between two readings of the clock
  int warm_ups = 2;
  int least = 5;  // repetitions
  int most = 100;
  Nanoseconds enough{20'000'000};  // ends repetitions beyond `least`
  // Above 0: the median of three means over this time, regardless of the values above. For a CPU
  // with a quota per period: short ops fit between its interruptions, so their median misses them.
  Nanoseconds window{};
};

struct MeasuredTime {
  Nanoseconds time;  // median, of repetitions or of windows
  int repetitions = 0;
};

// Throws Error if the op cannot run: too little memory, or no kernel.
MeasuredTime measure(const OpTimer& timer, const Graph& single);

// Returns the number below which integer operands of a single op are valid indices.
int64_t index_bound(const Graph& single);

}  // namespace medley
