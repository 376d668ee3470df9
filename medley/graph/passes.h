#pragma once

// Rewrites the whole graph before planning. Each pass returns a new graph with the same outputs;
// run_passes() verifies after each one. Knows no devices.

#include <cstdint>
#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

// Replaces zeros_like(x), new_ones(x, ..) and similar ops by full(..). Also replaces by a constant
// the total weight that nll_loss_backward reads only for a mean. Neither then moves a tensor.
Graph drop_unread_operands(const Graph& graph);

// Drops ops whose results reach no output.
Graph remove_dead_ops(const Graph& graph);
// Removes ops that are identities: detach, alias, clone, lift_fresh_copy; copy and _to_copy to the
// same dtype; views, expands, slices and permutes without effect. It also removes inverse pairs of
// views or permutes, and x * 1, x / 1 and x + 0, as in the tangent of the loss.
Graph fold_identities(const Graph& graph);
// Computes products and quotients of constants (ones, full, scalar_tensor, ... of shape []).
// Replaces a constant factor of shape [], and a constant last operand of where(), by its number.
Graph fold_constants(const Graph& graph);
// Removes tensors without elements from cat (the unrotated part of a head, if all is rotated); the
// gradient of such a slice becomes zeros.
Graph fold_empty(const Graph& graph);
// Replaces x[indices] by view(x) if the indices only count rows and columns, as in masks of
// transformers' models. Replaces x[0 1 2 .., columns] by gather, and its gradient by scatter_add,
// in which rows are visibly independent.
Graph fold_counts(const Graph& graph);
// addmm(bias, a, b) with alpha = beta = 1 -> add(mm(a, b), bias)
Graph split_addmm(const Graph& graph);
// view - mm - view -> medley.contract(x [.., k], w [k, n]) -> [.., n], if the views merge and
// restore the leading dims; also through mm - mm and mm - add(bias [n]).
Graph merge_views_into_mm(const Graph& graph);

// Returns the part of a graph that computes loss and metrics, without gradients and new values of
// buffers. It is no pass.
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
