#pragma once

// Exact removal of the variables with at most two neighbours: the minimum over such a variable's
// choices is a cost of one neighbour, or a table between two. What is left has far fewer variables,
// and whatever bounds it bounds more tightly than it would the whole. Private to pbqp*.cpp.
//
//   a - v - b   =>   a === b      h(a, b) = min_v f(a, v) + u(v) + g(v, b)
//
// Variables are taken in rounds of ones that do not touch, so that equal parts stay equal.

#include <optional>

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

// Removes variables, and knows how to choose for them given their neighbours' choices.
class Contraction {
 public:
  explicit Contraction(Reducer& reducer) : reducer_(reducer) {}

  // Removes what it can as long as v, a and b together have at most `most_entries` combinations.
  // Returns what is left, or nothing if no assignment is allowed. Its variables are numbered
  // by their distance from one end (Cuthill and McKee, https://doi.org/10.1145/800195.805928):
  // what lies between forward and backward is then near in number too, and messages that are passed
  // on in this order converge in half as many sweeps.
  std::optional<Core> contract(Core core, size_t most_entries);

  // Returns the choices of all variables, as the problem counts them, given those of what was left.
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
  std::vector<std::vector<int32_t>> choices_;  // [variable]: before anything was removed
  std::vector<int32_t> left_;                  // [variable of what is left]: before
};

}  // namespace medley::pbqp
