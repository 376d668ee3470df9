#pragma once

// Times of ops on a device type from its figures alone (roofline,
// https://doi.org/10.1145/1498765.1498785), without measurements:
//
//   time = launch latency + max(flops / sustained rate of the dtype, bytes / memory bandwidth)
//
// A view or an empty op (a shard of length zero) takes no time. Knows nothing of communication.

#include "medley/base/units.h"
#include "medley/cluster/cluster.h"
#include "medley/graph/graph.h"
#include "medley/ops/rule.h"
#include "medley/profile/sized_op.h"

namespace medley {

// Returns the sustained rate; integer dtypes use that of f32. Throws Error(kCaller) if the type has
// no rate for a floating dtype.
FlopsPerSecond sustained_rate(const DeviceKind& kind, DType dtype);

Nanoseconds op_time(const DeviceKind& kind, WorkClass work_class, const Work& work, DType dtype);

Nanoseconds op_time(const DeviceKind& kind,
                    const Graph& graph,
                    const Op& op,
                    const std::vector<int64_t>& symbols);

}  // namespace medley
