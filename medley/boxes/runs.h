#pragma once

// The memory addresses of a box in row-major memory, for kernels, messages and files: equal runs of
// neighbours, and loops around them.
//
//   heads 1 and 2 of q, k, v (box.h)   start 2, length 4, counts { 3 }, strides { 8 }

#include <cstdint>
#include <vector>

#include "medley/boxes/box.h"

namespace medley {

struct Runs {
  int64_t start = 0;                     // offset of the first element
  int64_t length = 0;                    // elements per run; 0: empty
  std::vector<int64_t> counts, strides;  // loops, outermost first; none: one run

  int64_t count() const;  // number of runs
  int64_t total() const { return count() * length; }
  int64_t start_of(int64_t run) const;
  bool operator==(const Runs&) const = default;
};

// Returns the runs of a box in the whole value, in row-major order, with the longest runs and
// fewest loops. In units of elements, or of bytes if `bytes` is the element size. Requires: a box
// inside.
Runs runs_of(const FactorSizes& factors, const Box& box, int64_t bytes = 1);

// Returns the runs of a box in a shard: a tensor with exactly the elements of another box. The
// factors of the two may differ. Requires: a cell of a layout that has the shard, so that it is
// inside and cut at the shard's cuts.
Runs runs_in(const FactorSizes& shard_factors,
             const Box& shard,
             const FactorSizes& factors,
             const Box& box,
             int64_t bytes = 1);

}  // namespace medley
