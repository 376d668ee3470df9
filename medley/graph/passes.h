#pragma once

// Rewrites of the whole graph, before planning. Each returns a new graph that computes the same outputs; run_passes() verifies after
// each one. None knows of devices.

#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

Graph remove_dead_ops(const Graph& graph);   // ops whose results reach no output
Graph fold_identities(const Graph& graph);   // detach, alias, lift_fresh_copy, views/expands/slices/permutes that change nothing, double transposes, x * 1 tangents
Graph fold_constants(const Graph& graph);    // scalar constants (ones, full, scalar_tensor of shape [] ...) multiplied or divided into nothing
Graph split_addmm(const Graph& graph);       // addmm(bias, a, b) with alpha = beta = 1 -> add(mm(a, b), bias)
Graph merge_views_into_mm(const Graph& graph);  // view - mm - view -> medley.contract(x [.., k], w [k, n]) -> [.., n]

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
