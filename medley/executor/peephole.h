#pragma once

// Rewrites a segment's ops into fewer, larger ones. Knows nothing of PyTorch.

#include <vector>

#include "medley/program/program.h"

namespace medley {

struct SegmentOp {
  Op op;
  std::vector<ValueId> dies;
};

// Returns the ops of a segment. Fuses a matmul (mm or contract) and the addition of a bias if the
// matmul has no other user.
std::vector<SegmentOp> fuse(const Graph& graph,
                            const Segment& segment,
                            const std::vector<int64_t>& symbols);

}  // namespace medley
