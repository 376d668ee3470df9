#pragma once

// A cluster of which all that can be rented has a price. Knows nothing of what is bought for it.

#include "medley/cluster/cluster.h"

namespace medley {

// As parse_cluster. Throws Error(kCaller), with file and line, also for the first entry of `nodes`
// without a price: who plans for money has to say of what is free that it costs 0.
Cluster parse_priced_cluster(std::string_view yaml,
                             std::string_view file,
                             const Catalogue& catalogue);

}  // namespace medley
