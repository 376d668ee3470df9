#pragma once

// Kinds of communication in programs, prices, profiles and transports. kCommunications describes
// each kind. Only its kernel, its messages, the transport and its lowering have own code for a
// kind.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "medley/base/at.h"

namespace medley {

// `send` and `receive`: elements per device of the group (Communication in program/program.h).
enum class CommunicationKind : uint8_t {
  // inputs[i] -> outputs[i], same shape, reduced element-wise; several tensors form a bucket.
  kAllReduce,
  kAllGather,  // Flat chunk of receive[me] elements -> flat concatenation of receive[j] over all j.
  // Flat concatenation of send[j] over all j -> element-wise sum of the chunks for me.
  kReduceScatter,
  kAllToAll,  // Flat concatenation of send[j] (for device j) -> that of receive[j] (from device j).
  kTransfer,  // kAllToAll between two stages: one has only inputs, the other only outputs.
  // Tensors of several stages -> flat sums by each layout: two all-to-alls (boxes/gradient_sync.h).
  kGradientSync,
};

struct CommunicationTraits {
  std::string_view name;  // As in profiles and programs.
  bool sends = false;     // Each device receives its own piece of an input; else all of it.
  bool receives = false;  // An output is the concatenation of the arriving pieces.
  bool sums = false;      // An output is the sum or maximum of the arriving tensors.
  bool own_group = true;  // It has a process group; else it is messages within the group of all.
  // Returns whether tensors keep their shapes, without lengths.
  constexpr bool is_whole() const { return !sends && !receives; }
  // Returns whether each pair of devices has its own lengths; else all know the same lengths.
  constexpr bool is_pairwise() const { return sends && receives; }
  // Returns whether a device ends with more than its own piece.
  constexpr bool gathers() const { return receives || !sends; }
};
inline constexpr CommunicationTraits kCommunications[] = {
    // [CommunicationKind]
    {.name = "all_reduce", .sums = true},
    {.name = "all_gather", .receives = true},
    {.name = "reduce_scatter", .sends = true, .sums = true},
    {.name = "all_to_all", .sends = true, .receives = true},
    {.name = "transfer", .sends = true, .receives = true, .own_group = false},
    {.name = "gradient_sync", .sends = true, .receives = true, .sums = true, .own_group = false},
};
constexpr const CommunicationTraits& traits_of(CommunicationKind kind) {
  return kCommunications[at(kind)];
}

std::string to_string(CommunicationKind kind);
std::optional<CommunicationKind> find_communication_kind(std::string_view name);
// Returns the number of lengths that describe one: of the whole, of each device's chunk, or of each
// pair of devices (twice for a gradient sync).
size_t num_lengths(CommunicationKind kind, size_t devices);

}  // namespace medley
