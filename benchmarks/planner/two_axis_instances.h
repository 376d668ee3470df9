#pragma once

// A stand-in for synthesis over two axes, made of two problems over one axis of the same graph:
// the planner has no two-axis problem yet. It has the size and the shape of one, not its prices.
//
//   choice        one of the first axis with one of the second
//   compute       divided by both:   unary(s, t) = first(s) * second(t) / max second
//   conversion    axis by axis, the second axis' bytes divided by what the first left of them:
//                 table((s, t), (x, y)) = first(s, x) + second(t, y) * first(s) / max first
//
// A tensor's dim may be cut on both axes, and a variable without compute (a copy) leaves the bytes
// of the second axis whole.

#include "medley/planner/pbqp.h"

namespace medley {

// Requires: the same variables and edges.
Pbqp two_axis_instance(const Pbqp& first, const Pbqp& second);

}  // namespace medley
