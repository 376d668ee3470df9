#pragma once

// Recomputes forward values in the backward phase instead of keeping them
// (https://arxiv.org/abs/1604.06174): forward ops are copied to where the backward phase first
// reads them. Kept values are:
//
//   "none"   forward  a b c d      backward           d' c' b' a'    a b c d.
//   "all"    forward  a b c d      backward  a b c d  d' c' b' a'    the stage's inputs.
//   "blocks" forward  a b|c d      backward  c d d' c'  a b b' a'    values that cross a cut |.
//
// Blocks minimise memory. With n micro-batches in flight, K(C) is the bytes that cross the cuts C,
// each value once. S(i, j) is the bytes made between two cuts that the backward phase reads and
// that do not cross the second:
//
//   min over C of   n K(C) + max over blocks of S(i, j)
//
// A cut is a place that no more bytes cross than the one before. Only values with rows are kept;
// values made of parameters and constants alone are recomputed. An op that reads a buffer which the
// step changes is not copied, but kept. Knows nothing of devices, times and choices.

#include <vector>

#include "medley/prepare/prepare.h"

namespace medley {

// Recomputes as the context says. Copies have the names of their originals.
void recompute(Prepared& prepared, const StageContext& context);

// Returns for each op the forward op that it repeats, kNone for others. Ops from one expanded op
// (expand()) keep their order.
std::vector<OpId> originals(const Prepared& prepared);

// Returns the positions of forward ops at which the blocks after the first begin, ascending.
std::vector<size_t> recomputed_blocks(const Graph& graph, int in_flight);

}  // namespace medley
