#pragma once

// Computes a lower bound of all assignments, and reduced costs of choices, by messages that move
// costs between variables and edges. Private to pbqp*.cpp.
//
//    theta'_v(s)      = theta_v(s) + sum over edges e of v: m_ev(s)
//    theta'_e(s, x)   = theta_e(s, x) - m_eu(s) - m_ev(x)
//    bound            = sum_v min theta'_v + sum_e min theta'_e
//    reduced cost(s)  = theta'_v(s) - min theta'_v + sum_e (min_x theta'_e(s, x) - min theta'_e)
//
// Messages do not change an assignment's cost, so any messages give a valid bound. Sequential
// tree-reweighted message passing (https://doi.org/10.1109/TPAMI.2006.200) gives good ones.
// Variables with identical neighbourhoods of several edges get equal messages, so most work is done
// once per class.

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

struct Bound {
  int64_t lower = 0;
  std::vector<std::vector<int64_t>> reduced;  // [variable][choice]; empty if one choice is left
};

class Dual {
 public:
  // Forbidden entries count slightly more than any allowed assignment can cost.
  Dual(const TablePool& pool, const Core& core);

  double forbidden() const { return forbidden_; }

  // Iterates on one variable per class and copies the messages to all edges of the class. Does
  // nothing if there are nearly as many classes as variables.
  void iterate_classes(int iterations, Clock::time_point deadline);
  void iterate(int iterations, Clock::time_point deadline);

  // Returns the approximate bound, unrounded, in a twentieth of the time of ten iterations.
  double estimate() const;

  // Returns the exact bound, with messages rounded to integers.
  Bound bound() const;

  // Chooses for each variable in turn, from earlier choices and messages of later variables, then
  // improves single choices while possible. Returns positions in core.choices.
  std::vector<int32_t> decode() const;

 private:
  struct Matrix {  // in both layouts, for contiguous inner loops
    size_t rows = 0, columns = 0;
    std::vector<double> by_row, by_column;
  };
  struct Incidence {
    size_t edge = 0;
    bool column = false;
  };
  // Graph for messages: the variables and edges of the core, or their classes.
  struct Graph {
    std::vector<std::vector<double>> unaries;        // [node]
    std::vector<std::vector<Incidence>> incidences;  // [node]
    std::vector<size_t> matrix_of;                   // [edge]
    std::vector<size_t> begin;                       // [2 * edge + column]: of m_eu, m_ev
    std::vector<double> messages;
  };

  void add_edge(Graph& graph, size_t matrix) const;
  // Returns theta'_v of the current messages, and the share of it in each message.
  double gather(const Graph& graph, size_t node, std::vector<double>& unary) const;
  void sweep(Graph& graph, bool forward) const;
  void sweep_both(Graph& graph, int iterations, Clock::time_point deadline) const;
  // Like sweep_both(), but stops when no message moves by more than the rounding of costs.
  void settle(Graph& graph, int iterations, Clock::time_point deadline) const;
  std::vector<std::vector<int64_t>> final_messages() const;

  const Core& core_;
  double forbidden_ = 0;
  std::vector<Matrix> matrices_;
  Graph full_;  // nodes are the core's variables
};

}  // namespace medley::pbqp
