#pragma once

// Tracks values with one known number in every element: ones, full, and their copies, views and
// expansions. Grows with the graph, op by op. Knows nothing of other arithmetic.

#include <optional>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

class UniformValues {
 public:
  // Processes the ops appended to the graph since the last call.
  void update(const Graph& graph);
  std::optional<double> of(ValueId value) const;
  // Returns the number of argument `i`, or of every element of its tensor.
  std::optional<double> of_argument(const Op& op, size_t i) const;

 private:
  std::optional<double> evaluate(const Op& op) const;

  size_t ops_seen_ = 0;
  std::vector<std::optional<double>> known_;
};

// Returns the number after storage as a dtype; nullopt if the rounding is not obvious.
std::optional<double> stored_as(DType dtype, double number);

}  // namespace medley
