#pragma once

// What an op is but for names: equal ops have equal tokens. For find_layers().

#include <cstdint>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/stages/stages.h"

namespace medley {

using Token = uint64_t;

Token mix(Token a, Token b);

// Ops and what they read. A source is the value of another op that is computed once; views and what
// is computed again are part of the token of their reader.
struct OpTokens {
  std::vector<Token> token;                   // [op] for Presence::kOnce
  std::vector<std::vector<ValueId>> sources;  // [op] roots, in the order of the operands
};
OpTokens op_tokens(const Graph& graph, const Positions& positions);

}  // namespace medley
