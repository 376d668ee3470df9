#pragma once

// Checks before the first step that all devices run the same program. Each publishes named hashes
// and compares all of them.

#include <string>
#include <utility>
#include <vector>

#include "medley/runtime/store.h"

namespace medley {

// In the order of comparison, the most specific cause first: {"graph", ...}, {"plan", ...},
// {"versions", ...}, {"program", ...}.
using NamedHashes = std::vector<std::pair<std::string, std::string>>;

// Returns when all devices have published the same hashes. Otherwise throws the same Error(kCaller)
// on all of them, which names the first difference from devices[0]. After the time-out throws
// Error(kEnvironment) that names the missing device. Requires: equal `devices` on all of them and
// not empty; `generation` never used before.
void handshake(Store& store,
               int generation,
               int device,
               const std::vector<int>& devices,
               const NamedHashes& hashes,
               std::chrono::milliseconds timeout);

}  // namespace medley
