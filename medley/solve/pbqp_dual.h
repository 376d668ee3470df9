#pragma once

// A lower bound of all assignments, and what each choice costs beyond it, from costs that messages
// move between variables and edges. Private to pbqp*.cpp.
//
//   theta'_v(s)      = theta_v(s) + sum over edges e of v: m_ev(s)
//   theta'_e(s, x)   = theta_e(s, x) - m_eu(s) - m_ev(x)
//   bound            = sum_v min theta'_v + sum_e min theta'_e
//   reduced cost(s)  = theta'_v(s) - min theta'_v + sum_e (min_x theta'_e(s, x) - min theta'_e)
//
// An assignment's cost is the same for any messages, so any give a valid bound; sequential
// tree-reweighted message passing (https://doi.org/10.1109/TPAMI.2006.200) makes good ones.
// Variables that look alike for several edges around get the same messages, so most of the work is
// done once per class of them.

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

struct Bound {
  int64_t lower = 0;
  std::vector<std::vector<int64_t>> reduced;  // [variable][choice]; empty if one choice is left
};

class Dual {
 public:
  // Forbidden entries count as a bit more than any allowed assignment can cost.
  Dual(const TablePool& pool, const Core& core);

  double forbidden() const { return forbidden_; }

  // Iterates on one variable of each class and copies the messages to all edges of a class. Does
  // nothing if there are hardly fewer classes than variables.
  void iterate_classes(int iterations, Clock::time_point deadline);
  void iterate(int iterations, Clock::time_point deadline);

  // The bound without rounding, hence nearly; for a twentieth of the time of ten iterations.
  double estimate() const;

  // Exact: messages are rounded to integers first.
  Bound bound() const;

  // Chooses for one variable after another, given those before and the messages of those behind,
  // then improves single choices while that helps. Returns positions in core.choices.
  std::vector<int32_t> decode() const;

 private:
  struct Matrix {  // both ways round, so that inner loops are contiguous
    size_t rows = 0, columns = 0;
    std::vector<double> by_row, by_column;
  };
  struct Incidence {
    size_t edge = 0;
    bool column = false;
  };
  // What messages are passed on: the variables and edges of the core, or their classes.
  struct Graph {
    std::vector<std::vector<double>> unaries;        // [node]
    std::vector<std::vector<Incidence>> incidences;  // [node]
    std::vector<size_t> matrix_of;                   // [edge]
    std::vector<size_t> begin;                       // [2 * edge + column]: of m_eu, m_ev
    std::vector<double> messages;
  };

  void add_edge(Graph& graph, size_t matrix) const;
  // Returns theta'_v of the messages now, and the share of it that goes into each message.
  double gather(const Graph& graph, size_t node, std::vector<double>& unary) const;
  void sweep(Graph& graph, bool forward) const;
  void sweep_both(Graph& graph, int iterations, Clock::time_point deadline) const;
  // The same, about as many at most, until a pass moves no message by more than costs are rounded.
  void settle(Graph& graph, int iterations, Clock::time_point deadline) const;
  std::vector<std::vector<int64_t>> final_messages() const;

  const Core& core_;
  double forbidden_ = 0;
  std::vector<Matrix> matrices_;
  Graph full_;  // nodes are the core's variables
};

}  // namespace medley::pbqp
