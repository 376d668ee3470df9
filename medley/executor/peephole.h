#pragma once

// Rewrites of a segment's ops into fewer, larger ones. Knows nothing of PyTorch.

#include <vector>

#include "medley/program/program.h"

namespace medley {

struct SegmentOp {
  Op op;
  std::vector<ValueId> dies;
};

// Returns the ops of a segment; a product (mm or contract) followed by the addition of a bias,
// where nobody else needs the product, is one op.
std::vector<SegmentOp> fuse(const Graph& graph,
                            const Segment& segment,
                            const std::vector<int64_t>& symbols);

}  // namespace medley
