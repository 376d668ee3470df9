#pragma once

#include <functional>

namespace medley {

// Returns the time of a byte between two devices of a cluster, in any unit. Used for choosing only.
using ByteTime = std::function<double(int from, int to)>;

}  // namespace medley
