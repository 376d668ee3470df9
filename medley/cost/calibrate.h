#pragma once

// Latencies and bandwidths of networks from measured collectives. A collective is rounds of
// messages, so its time is linear in the latency a and the inverse bandwidth b of the networks that
// its slowest messages go over:
//
//   time = (rounds) a + (bytes on the most loaded link, summed over the rounds) b
//
// Solved for a >= 0 and b > 0 as least squares of relative errors, large ones (a hiccup while
// measuring) counting less (Huber). Rows are scaled so that they agree with FlowEngine, which the
// simulator uses, and taken anew where the solution changes which messages are the slowest
// (Gauss-Newton).
//
// Which algorithm a library ran is not in its times ("backend"), but in how they grow with sizes
// and groups: of each kind of collective the algorithm whose figures explain all times best is
// taken for the library's. Knows nothing of how the times were measured.

#include <span>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/network/collectives.h"
#include "medley/profile/profile.h"

namespace medley {

struct Calibration {
  Cluster cluster;            // with the figures that explain the measurements best
  LibraryAlgorithms library;  // of kinds that a library was measured with
};
// A figure that none of
// them depends on stays, as does one that changes by less than 1 in 1000. Measurements among
// devices that are not of this cluster are left out. Throws Error(kCaller) for an algorithm that
// does not exist.
Calibration calibrated(const Cluster& cluster, std::span<const CollectiveMeasurement> measurements);

// Returns the time of the messages if nothing else uses the network, as FlowEngine moves them: all
// devices post at time zero; when the last is done.
Nanoseconds time_alone(std::span<const Message> messages,
                       const Collective& collective,
                       const Topology& topology);

}  // namespace medley
