#pragma once

// Where the elements of a box lie in row-major memory, for kernels, messages and files: equal runs
// of neighbours, and loops around them.
//
//   heads 1 and 2 of q, k, v (box.h)   start 2, length 4, counts { 3 }, strides { 8 }

#include <cstdint>
#include <vector>

#include "medley/boxes/box.h"

namespace medley {

struct Runs {
  int64_t start = 0;                     // place of the first element
  int64_t length = 0;                    // of each run; 0: there is nothing
  std::vector<int64_t> counts, strides;  // loops, outermost first; none: one run

  int64_t count() const;  // of runs
  int64_t total() const { return count() * length; }
  int64_t start_of(int64_t run) const;
  bool operator==(const Runs&) const = default;
};

// Returns the runs of a box in the whole value, in row-major order, as long and as few loops as can
// be; in bytes where an element has `bytes`, with 1 in elements. Requires: a box inside.
Runs runs_of(const FactorSizes& factors, const Box& box, int64_t bytes = 1);

// The same in a shard: a tensor that has the elements of another box and no others, as a device
// keeps it. The factors of the two may differ. Requires: a cell of a layout that has the shard, so
// that it lies inside and is cut where the shard is.
Runs runs_in(const FactorSizes& shard_factors,
             const Box& shard,
             const FactorSizes& factors,
             const Box& box,
             int64_t bytes = 1);

}  // namespace medley
