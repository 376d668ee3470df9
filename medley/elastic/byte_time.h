#pragma once

#include <functional>

namespace medley {

// What a byte takes from one device of a cluster to another, in any unit; for choosing only.
using ByteTime = std::function<double(int from, int to)>;

}  // namespace medley
