#pragma once

// What the whole model takes as one stage on all devices of a pool, by sums over layers: whether a
// closer search for how they share it (synthesis/spmd.h) can be of use.

#include <optional>

#include "medley/candidates/pools.h"
#include "medley/candidates/stage_options.h"

namespace medley {

// The shortest step of all numbers of micro-batches, if it takes less than `below` and has room, or
// nearly, for one in flight. Requires: the pool is alike; `stages` has the same graph and cluster.
std::optional<Nanoseconds> step_on_pool(const Request& request,
                                        const DevicePool& pool,
                                        Nanoseconds below,
                                        StageSynthesis& stages);

}  // namespace medley
