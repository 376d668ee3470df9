#pragma once

#include <concepts>
#include <cstddef>

namespace medley {

// An id or a count as an index: `ops[at(id)]`. Ids are signed, so that none can be said as -1.
constexpr size_t at(std::integral auto index) { return static_cast<size_t>(index); }

}  // namespace medley
