#pragma once

// Tokens of ops, equal for ops that are equal except for names. For find_layers().

#include <cstdint>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/stages/stages.h"

namespace medley {

using Token = uint64_t;

Token mix(Token a, Token b);

// Ops and their sources. A source is a value of another op that is computed once; views and
// recomputed ops are part of their reader's token.
struct OpTokens {
  std::vector<Token> token;                   // [op] for Presence::kOnce
  std::vector<std::vector<ValueId>> sources;  // [op] roots, in the order of the operands
};
OpTokens op_tokens(const Graph& graph, const Positions& positions);

}  // namespace medley
