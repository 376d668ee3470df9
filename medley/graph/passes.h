#pragma once

// Rewrites of the whole graph, before planning. Each returns a new graph that computes the same
// outputs; run_passes() verifies after each one. None knows of devices.

#include <cstdint>
#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

// Replaces zeros_like(x), new_ones(x, ..) and the like by full(..), and the total weight that
// nll_loss_backward reads only for a mean by a constant: neither is a reason to move a tensor.
Graph drop_unread_operands(const Graph& graph);

// Drops ops whose results reach no output.
Graph remove_dead_ops(const Graph& graph);
// Replaces the result by the operand: detach, alias, clone, lift_fresh_copy, copy and _to_copy to
// the same dtype; views, expands, slices and permutes that change nothing; views and permutes that
// undo each other; x * 1, x / 1 and x + 0, the tangent of the loss among them.
Graph fold_identities(const Graph& graph);
// Computes products and quotients of constants (ones, full, scalar_tensor, ... of shape []), and
// multiplies or divides by the number where the factor is a constant of shape []. Chooses the
// number where the last operand of where() is a constant.
Graph fold_constants(const Graph& graph);
// Tensors without elements (what is behind the part of a head that is rotated, if all of it is):
// cat goes without them, and the gradient of such a slice is zeros.
Graph fold_empty(const Graph& graph);
// x[indices] -> view(x) where the index tensors only count its rows and columns, as those do with
// which transformers' models read a mask; x[0 1 2 .., columns] -> gather, and its gradient
// scatter_add: no row then seems to read another.
Graph fold_counts(const Graph& graph);
// addmm(bias, a, b) with alpha = beta = 1 -> add(mm(a, b), bias)
Graph split_addmm(const Graph& graph);
// view - mm - view -> medley.contract(x [.., k], w [k, n]) -> [.., n], where the views merge and
// restore the leading dims; also through mm - mm and mm - add(bias [n]).
Graph merge_views_into_mm(const Graph& graph);

// What a graph computes of a batch: its loss and metrics. Gradients, new values of buffers and what
// only these need are left out. No pass.
Graph forward_only(const Graph& graph);

struct Pass {
  std::string name;
  std::string help;
  Graph (*run)(const Graph&);
};
const std::vector<Pass>& passes();  // all, in the order in which they run

struct PassTime {
  std::string name;
  int64_t nanoseconds;
  int64_t ops_before, ops_after;
};
// Runs all passes, verifying after each; fills `times` if given.
Graph run_passes(const Graph& graph, std::vector<PassTime>* times = nullptr);

}  // namespace medley
