#pragma once

// The factors of every dim of every value. A dim is an ordered product of factors, refined through
// views, splits and concatenations and propagated back to the producer. A fused QKV weight [d,
// 3*h*dh] gets the factors 3, h, dh. Equal factors share an extent, which gives their size. Knows
// nothing of devices or plans.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/ops/rule.h"

namespace medley {

using ExtentId = int32_t;

struct Factors {
  std::vector<Size> extent_sizes;  // [extent]
  std::vector<std::vector<std::vector<ExtentId>>>
      values;  // [value][dim] -> factors in order; a dim of size 1 has none
  // [op], shared by identical ops; null: no rule fits and "replicate" is the only choice
  std::vector<std::shared_ptr<const Instance>> instances;
  std::vector<std::vector<std::vector<ExtentId>>> labels;  // [op][label] -> factors in order
};

// A value and the sizes of its dims' factors: [dim] -> sizes in order.
using KnownFactors = std::vector<std::pair<ValueId, std::vector<std::vector<Size>>>>;

// Returns the factors of a graph. Gradients share the factors of their parameters, updates those of
// their targets, and all batch dims of the batch inputs are one extent. The pairs in `equal`, of
// equal shapes, share factors too. `known`: factors from a larger graph.
Factors factorize(const Graph& graph,
                  const std::vector<std::pair<ValueId, ValueId>>& equal = {},
                  const KnownFactors& known = {});

// Returns a graph's factors for the parameters and buffers of `part`, by name.
KnownFactors known_inputs(const Graph& graph, const Factors& factors, const Graph& part);

// Returns all factors of a value in one list, indexed by AxisPlacement::position.
std::vector<ExtentId> flat_factors(const Factors& factors, ValueId value);
// Returns their sizes. Requires: a value without symbols, such as a parameter.
std::vector<int64_t> constant_factors(const Factors& factors, ValueId value);
// Returns the position of factor `factor` of dim `dim`.
int position_of(const Factors& factors, ValueId value, int dim, int factor);

// Returns the names of ops without a fitting rule whose result depends on batch or parameters,
// sorted and unique.
std::vector<std::string> fallbacks(const Graph& graph, const Factors& factors);

}  // namespace medley
