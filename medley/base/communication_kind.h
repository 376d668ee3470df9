#pragma once

// What devices exchange with each other. Programs, prices, profiles and transports all name it by
// these.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace medley {

enum class CommunicationKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kTransfer,  // an all-to-all from the devices of one stage to those of another
  kRelay,     // sums of what stages have of the same tensors, given to whoever wants them: two
              // all-to-alls in a row (boxes/relay.h)
};
std::string to_string(CommunicationKind kind);  // "all_reduce", as in profiles and programs
std::optional<CommunicationKind> find_communication_kind(std::string_view name);

}  // namespace medley
