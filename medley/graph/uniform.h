#pragma once

// Which values of a graph hold one known number in every element: ones, full, and what copies,
// reshapes or expands them. Grows with the graph, op by op. Knows nothing of other arithmetic.

#include <optional>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

class UniformValues {
 public:
  // Takes note of the ops that were appended to the graph since the last call.
  void update(const Graph& graph);
  std::optional<double> of(ValueId value) const;
  // The number that argument `i` of the op is, or that every element of its tensor is.
  std::optional<double> of_argument(const Op& op, size_t i) const;

 private:
  std::optional<double> evaluate(const Op& op) const;

  size_t ops_seen_ = 0;
  std::vector<std::optional<double>> known_;
};

// Returns what the number becomes when stored as a dtype; nothing where that is not obvious.
std::optional<double> stored_as(DType dtype, double number);

}  // namespace medley
