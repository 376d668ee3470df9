#pragma once

// The figures of a kind of device from times of blocks of ops on it: what the analytic model is to
// be told where the vendor's figures are all one has, or mislead.
//
// A block is what a host issues in one go to a device that works through it meanwhile, and then
// waits for. The slower of the two is seen:
//
//   host     |entry|launch|launch|launch|                       time = max(entry + n launch,
//   device             |== op ==|== op ==|=== op ===|                      sum of roofs)
//
// where the roof of an op is op_time() without its launch. Blocks of one op, run to their end, are
// the special case of a device that does not run ahead. Knows nothing of who measured.

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
  Seconds entry;  // what the host takes before it issues the first op: of the measuring program
};

Seconds block_time(const FittedKind& fitted, std::span<const OpWork> ops);

// Returns the figures with the least mean of |log(predicted / measured)|: launch latency, entry,
// memory bandwidth and the sustained rate of each dtype that the blocks compute in; the rest is
// as in `start`. A descent by one figure at a time. Requires: times are positive; `start` has a
// rate for these dtypes.
FittedKind fit_rates(const DeviceKind& start, std::span<const TimedBlock> blocks);

}  // namespace medley
