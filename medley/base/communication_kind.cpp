#include "medley/base/communication_kind.h"

#include <iterator>

#include "medley/base/at.h"

namespace medley {
namespace {

constexpr std::string_view kKindNames[] = {  // [CommunicationKind]
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "transfer",
    "relay"};

}  // namespace

std::string to_string(CommunicationKind kind) { return std::string(kKindNames[at(kind)]); }

std::optional<CommunicationKind> find_communication_kind(std::string_view name) {
  for (size_t i = 0; i < std::size(kKindNames); ++i)
    if (kKindNames[i] == name) return static_cast<CommunicationKind>(i);
  return std::nullopt;
}

}  // namespace medley
