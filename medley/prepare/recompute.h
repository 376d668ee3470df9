#pragma once

// Computes forward values again in the backward phase instead of keeping them until then
// (https://arxiv.org/abs/1604.06174): ops of the forward phase are copied to where the backward
// phase first reads them. What stays is kept:
//
//   none     forward  a b c d      backward           d' c' b' a'    a b c d
//   all      forward  a b c d      backward  a b c d  d' c' b' a'    nothing but what comes in
//   blocks   forward  a b|c d      backward  c d d' c'  a b b' a'    what crosses a cut |
//
// Blocks are those of least memory. With n micro-batches in flight, K(C) the bytes that cross the
// cuts C, each value once, and S(i, j) those of what is made between two cuts that the backward
// phase reads and that do not cross the second:
//
//   min over C of   n K(C) + max over blocks of S(i, j)
//
// A cut is where no more bytes cross than at the place before. Only values with rows are kept; what
// is made of parameters and constants alone is made again. An op that reads a buffer which the step
// changes is not copied, but kept. Knows nothing of devices, times and choices.

#include <vector>

#include "medley/prepare/prepare.h"

namespace medley {

// Computes again as the context says. Copies have the names of what they are copies of.
void recompute(Prepared& prepared, const StageContext& context);

// Returns for each op the one of the forward phase that it does again, kNone for all others. Of one
// that became several (expand()) they come in the same order.
std::vector<OpId> originals(const Prepared& prepared);

// The positions of forward ops at which the blocks after the first begin, ascending.
std::vector<size_t> recomputed_blocks(const Graph& graph, int in_flight);

}  // namespace medley
