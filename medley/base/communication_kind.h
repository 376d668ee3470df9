#pragma once

// Kinds of communication, as programs, prices, profiles and transports name them. All rooms read
// from kCommunications what a kind does. Only the kernel that computes it, its messages, the
// transport and the lowering that chooses it have code for one kind.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "medley/base/at.h"

namespace medley {

// `send` and `receive`: elements per device of the group (Communication in program/program.h).
enum class CommunicationKind : uint8_t {
  kAllReduce,      // inputs[i] -> outputs[i], same shape, element-wise reduced over the group;
                   // several tensors are one bucket
  kAllGather,      // flat chunk of receive[me] elements -> flat concatenation of receive[j] over
                   // all j
  kReduceScatter,  // flat concatenation of send[j] over all j -> element-wise sum of the chunks for
                   // me, send[me] elements
  kAllToAll,       // flat concatenation of send[j] (for device j) -> flat concatenation of
                   // receive[j] (from device j)
  kTransfer,       // the same from the devices of one stage to those of another: the former have
                   // inputs only, the latter outputs only
  kRelay,          // tensors of several stages, each as its own layout says -> their sums, each as
                   // its receiver's layout says, flat: two all-to-alls in a row (boxes/relay.h)
};

struct CommunicationTraits {
  std::string_view name;  // as in profiles and programs
  bool sends = false;     // each device gets a piece of its own of an input; else all of it
  bool receives = false;  // an output is what arrives, piece after piece
  bool sums = false;      // an output is the sum (or maximum) of what arrives
  bool own_group = true;  // of processes; else it is messages within the group of all
  // Tensors keep their shapes, and there are no lengths.
  constexpr bool is_whole() const { return !sends && !receives; }
  // Each pair of devices has lengths of its own; else all devices know the same lengths.
  constexpr bool is_pairwise() const { return sends && receives; }
  // A device ends with more than its own piece.
  constexpr bool gathers() const { return receives || !sends; }
};
inline constexpr CommunicationTraits kCommunications[] = {
    // [CommunicationKind]
    {.name = "all_reduce", .sums = true},
    {.name = "all_gather", .receives = true},
    {.name = "reduce_scatter", .sends = true, .sums = true},
    {.name = "all_to_all", .sends = true, .receives = true},
    {.name = "transfer", .sends = true, .receives = true, .own_group = false},
    {.name = "relay", .sends = true, .receives = true, .sums = true, .own_group = false},
};
constexpr const CommunicationTraits& traits_of(CommunicationKind kind) {
  return kCommunications[at(kind)];
}

std::string to_string(CommunicationKind kind);
std::optional<CommunicationKind> find_communication_kind(std::string_view name);
// Returns how many lengths describe one among so many devices: of the whole, of each device's
// chunk, or of what each sends to each (of a relay, twice).
size_t num_lengths(CommunicationKind kind, size_t devices);

}  // namespace medley
