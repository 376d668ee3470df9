#pragma once

// Exact removal of variables with at most two neighbours: the minimum over such a variable's
// choices becomes a unary of one neighbour, or a table between two. The remaining problem has far
// fewer variables and tighter bounds. Private to pbqp*.cpp.
//
//   a - v - b   =>   a === b      h(a, b) = min_v f(a, v) + u(v) + g(v, b)
//
// Each round removes variables that are not adjacent, so equal parts stay equal.

#include <optional>

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

// Removes variables and reconstructs their choices from their neighbours' choices.
class Contraction {
 public:
  explicit Contraction(Reducer& reducer) : reducer_(reducer) {}

  // Removes variables while v, a and b together have at most `most_entries` combinations. Returns
  // the rest, or nullopt if no assignment is allowed. Variables are numbered by distance from one
  // end (Cuthill and McKee, https://doi.org/10.1145/800195.805928). Forward and backward ops of a
  // layer then have near numbers, and messages passed in this order converge in half as many
  // sweeps.
  std::optional<Core> contract(Core core, size_t most_entries);

  // Returns the choices of all original variables from those of the remaining ones.
  std::vector<int32_t> expand(const std::vector<int32_t>& choices_left) const;

 private:
  // An edge of a removed variable.
  struct Side {
    Reducer::Side seen;
    int32_t neighbour = 0;
  };
  struct Step {
    int32_t variable = 0, unary = 0;
    std::vector<Side> sides;  // at most two, by neighbour
  };

  std::optional<Step> step_of(int32_t variable, size_t most_entries) const;
  bool remove(const Step& step);
  void take_edges(const Step& step);
  double put_edge(int32_t a, int32_t b, int32_t table);
  Core numbered_by_distance();

  Reducer& reducer_;
  Core core_;
  std::vector<std::vector<int32_t>> edges_of_;  // [variable]
  std::vector<Step> steps_;
  std::vector<std::vector<int32_t>> choices_;  // [variable]: before any removal
  std::vector<int32_t> left_;                  // [remaining variable]: original index
};

}  // namespace medley::pbqp
