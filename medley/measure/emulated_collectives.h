#pragma once

// Times of collectives on the links of an emulated cluster, by algorithm: all their devices post at
// once to the emulation's message engine. Also lists the collectives to measure, which are the same
// on real devices.

#include <vector>

#include "medley/emulation/hidden_truth.h"
#include "medley/network/collectives.h"
#include "medley/network/topology.h"
#include "medley/profile/profile.h"

namespace medley {

// Returns sizes in bytes of the whole, from 4 KiB by factors of 8. Groups: all devices, and two
// devices for each network and pair of pools that it connects (or pool that contains it).
// Divisions: equal lengths, half of the whole on the first device, and all of it there. Requires:
// most_bytes >= 4096.
std::vector<Collective> wanted_collectives(const Topology& topology, int64_t most_bytes);

// Returns one measurement for each algorithm of the collective.
std::vector<CollectiveMeasurement> measure_emulated(const Collective& collective,
                                                    const Topology& topology);

// Runs an op alone, then while a message passes in either direction.
OverlapMeasurement measure_emulated_overlap(const DeviceKind& kind, const HiddenTruth& truth);

CollectiveMeasurement describe(const Collective& collective,
                               const Cluster& cluster,
                               std::string_view algorithm,
                               Nanoseconds time);

}  // namespace medley
