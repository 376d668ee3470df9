#pragma once

// Turns a communication of a program into one device's exchange, and compares exchanges within a
// group. Knows nothing of how it is transported.

#include <optional>

#include "medley/program/calls.h"
#include "medley/runtime/transport.h"

namespace medley {

// Returns the exchange without its inputs. `device` is an index into the mesh, `symbols` its table.
Exchange make_exchange(const LoweredStage& stage,
                       const Communication& communication,
                       int device,
                       const std::vector<int64_t>& symbols);

// Returns the difference between two devices' exchanges, or nothing: "device 0 has all_gather wte,
// receive [4, 4]; device 1 has all_gather wte, receive [4, 5]".
std::optional<std::string> disagreement(const Exchange& a, const Exchange& b);

}  // namespace medley
