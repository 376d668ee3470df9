#pragma once

// Reads a cluster in which every rentable node has a price. Knows nothing of purchases.

#include "medley/cluster/cluster.h"

namespace medley {

// Like parse_cluster(). Also throws Error(kCaller), with file and line, for the first entry of
// `nodes` without a price. Free nodes need an explicit price of 0.
Cluster parse_priced_cluster(std::string_view yaml,
                             std::string_view file,
                             const Catalogue& catalogue);

}  // namespace medley
