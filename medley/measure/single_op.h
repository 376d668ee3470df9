#pragma once

// One op with concrete sizes as a graph of its own, for measuring. Its operands are the inputs, in
// order, each once. It has no symbols. Knows nothing of times.

#include <optional>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

// Returns the graph of an op. `symbols`: the values of the graph's symbols.
Graph single_op(const Graph& graph, const Op& op, const std::vector<int64_t>& symbols);

// Returns a device's part of a single op that is divided into `pieces` along a label of its rule.
// This is the largest shard: one graph per label that may be cut and is at least that long.
//
//   mm [96, 512] x [512, 64]   in 2:   [48, 512] x [512, 64]
//                                      [96, 256] x [256, 64]
//                                      [96, 512] x [512, 32]
//
// Requires: pieces >= 2.
std::vector<Graph> shards(const Graph& single, int64_t pieces);

}  // namespace medley
