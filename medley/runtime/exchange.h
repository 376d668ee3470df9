#pragma once

// From a communication of a program to the exchange that one device posts, and what the devices of
// a group have to agree on. Knows nothing of how it is transported.

#include <optional>

#include "medley/program/calls.h"
#include "medley/runtime/transport.h"

namespace medley {

// Returns the exchange without its inputs. `device` is an index into the mesh, `symbols` its table.
Exchange make_exchange(const LoweredStage& stage,
                       const Communication& communication,
                       int device,
                       const std::vector<int64_t>& symbols);

// Returns what two devices of one group say differently about an exchange, nothing if they agree:
// "device 0 has all_gather wte, receive [4, 4]; device 1 has all_gather wte, receive [4, 5]".
std::optional<std::string> disagreement(const Exchange& a, const Exchange& b);

}  // namespace medley
