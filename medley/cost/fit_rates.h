#pragma once

// Fits the figures of a device type to times of blocks of ops, for the analytic model, if vendor
// figures mislead or nothing else exists.
//
// A block is a run of ops that a host issues at once and then waits for, while the device processes
// it. The slower of host and device determines the time:
//
//   host     |entry|launch|launch|launch|                       time = max(entry + n launch,
//   device             |== op ==|== op ==|=== op ===|                      sum of roofs)
//
// The roof of an op is op_time() without its launch. Blocks of one op model a device that does not
// run ahead. Knows nothing of the source of times.

#include <span>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/cost/op_time.h"

namespace medley {

struct TimedBlock {
  std::vector<OpWork> ops;
  Seconds time;
};

struct FittedKind {
  DeviceKind kind;
  Seconds entry;  // host time before the first op, of the measuring program
};

Seconds block_time(const FittedKind& fitted, std::span<const OpWork> ops);

// Returns the figures with the least mean of |log(predicted / measured)|: launch latency, entry,
// memory bandwidth and the sustained rate of each dtype of the blocks. All else is as in `start`.
// Uses coordinate descent. Requires: times are positive; `start` has a rate for these dtypes.
FittedKind fit_rates(const DeviceKind& start, std::span<const TimedBlock> blocks);

}  // namespace medley
