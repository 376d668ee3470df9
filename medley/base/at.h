#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace medley {

// Returns an id, a count or an enumerator as an index: `ops[at(id)]`. Ids are signed: -1 is none.
template <typename Index>
requires std::integral<Index> || std::is_enum_v<Index>
constexpr size_t at(Index index) { return static_cast<size_t>(index); }

}  // namespace medley
