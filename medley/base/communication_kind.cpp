#include "medley/base/communication_kind.h"

#include <iterator>

namespace medley {

std::string to_string(CommunicationKind kind) { return std::string(traits_of(kind).name); }

std::optional<CommunicationKind> find_communication_kind(std::string_view name) {
  for (size_t i = 0; i < std::size(kCommunications); ++i)
    if (kCommunications[i].name == name) return static_cast<CommunicationKind>(i);
  return std::nullopt;
}

size_t num_lengths(CommunicationKind kind, size_t devices) {
  const CommunicationTraits& traits = traits_of(kind);
  if (traits.is_whole()) return 1;
  if (!traits.is_pairwise()) return devices;
  return (traits.sums ? 2 : 1) * devices * devices;
}

}  // namespace medley
