#pragma once

// What collectives take on the links of an emulated cluster, algorithm by algorithm: posted by all
// their devices at once to the engine that moves the emulation's messages. Also what there is to
// measure, which is the same on real devices.

#include <vector>

#include "medley/emulation/hidden_truth.h"
#include "medley/network/collectives.h"
#include "medley/network/topology.h"
#include "medley/profile/profile.h"

namespace medley {

// Sizes in bytes of the whole, from 4 KiB on by factors of 8; groups: all devices, and for each
// network and pair of pools that it connects (or pool that it is inside of) two of its devices;
// unevenness: equal lengths, a first device with half of the whole, and one with all of it.
// Requires: most_bytes >= 4096.
std::vector<Collective> wanted_collectives(const Topology& topology, int64_t most_bytes);

// One measurement for each algorithm that the collective has.
std::vector<CollectiveMeasurement> measure_emulated(const Collective& collective,
                                                    const Topology& topology);

// Runs an op alone, and again while a message passes in either direction.
OverlapMeasurement measure_emulated_overlap(const DeviceKind& kind, const HiddenTruth& truth);

CollectiveMeasurement describe(const Collective& collective,
                               const Cluster& cluster,
                               std::string_view algorithm,
                               Nanoseconds time);

}  // namespace medley
