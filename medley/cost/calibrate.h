#pragma once

// Fits latencies and bandwidths of networks to measured collectives. A collective consists of
// rounds of messages. Its time is linear in the latency a and the inverse bandwidth b of the
// networks of its slowest messages:
//
//   time = (rounds) a + (bytes on the most loaded link, summed over the rounds) b
//
// Minimises the squares of relative errors for a >= 0 and b > 0; large errors (a hiccup while
// measuring) have less weight (Huber). Rows are scaled to agree with the simulator's FlowEngine.
// They are recomputed if the solution changes which messages are slowest (Gauss-Newton).
//
// Times do not name the library's algorithm ("backend"), but their growth with size and group does.
// For each collective Medley picks the algorithm that fits all times best. Knows nothing of how the
// times were measured.

#include <span>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/network/collectives.h"
#include "medley/profile/profile.h"

namespace medley {

struct Calibration {
  Cluster cluster;            // with the figures of the best fit
  LibraryAlgorithms library;  // for collectives measured with a library
};
// Keeps figures that no measurement depends on, and figures that change by less than 1 in 1000.
// Skips measurements among devices outside this cluster. Throws Error(kCaller) for an unknown
// algorithm.
Calibration calibrated(const Cluster& cluster, std::span<const CollectiveMeasurement> measurements);

// Returns the time of the messages on an idle network, by FlowEngine: from time zero, when all
// devices post, until the last message is done.
Nanoseconds time_alone(std::span<const Message> messages,
                       const Collective& collective,
                       const Topology& topology);

}  // namespace medley
