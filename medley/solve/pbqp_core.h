#pragma once

// Shared tools of the methods of pbqp.h: hash-consed cost tables, and the core of a problem without
// dominated choices. Private to pbqp*.cpp.
//
// Internal costs are doubles with integer values. Relevant values are below kForbidden = 2^50, so
// they are exact. Vector registers have a minimum of doubles, but not of 64-bit integers. A sum at
// or above kForbidden may round, but stays forbidden.

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "medley/base/at.h"
#include "medley/solve/pbqp.h"

namespace medley::pbqp {

inline constexpr double kNever = static_cast<double>(kForbidden);

// A table of any rank, last dimension contiguous: a unary has rank one, an edge two, the result of
// an elimination one per neighbour.
struct Table {
  std::vector<int32_t> sizes;
  std::vector<double> costs;
  bool operator==(const Table&) const = default;
};

struct HashOfIds {
  size_t operator()(const std::vector<int32_t>& ids) const;
};
template <typename T>
using Memo = std::unordered_map<std::vector<int32_t>, T, HashOfIds>;

// Gives equal tables equal ids, so that results for them are cached by id.
class TablePool {
 public:
  int32_t add(Table table);
  // Adds the table minus its minimum and returns both; forbidden entries stay forbidden. If all are
  // forbidden, the minimum is kNever.
  std::pair<int32_t, double> add_less_minimum(Table table);
  const Table& operator[](int32_t id) const { return tables_[at(id)]; }

 private:
  std::deque<Table> tables_;
  std::unordered_map<uint64_t, std::vector<int32_t>> ids_;  // [hash]
};

struct CoreEdge {
  int32_t u = 0, v = 0, table = 0;  // u < v; u picks the row
};

// A problem after some choices were dropped. A variable with one choice has no unary and no edges:
// its costs are in its neighbours and in `constant`. Edges are sorted; none are parallel.
struct Core {
  std::vector<std::vector<int32_t>>
      choices;                 // [variable]: the ones left, as the problem counts them
  std::vector<int32_t> unary;  // [variable]: a table, -1 if one choice is left
  std::vector<CoreEdge> edges;
  double constant = 0;
  int64_t dropped = 0;

  size_t num_variables() const { return choices.size(); }
};

using Clock = std::chrono::steady_clock;

// Computes results once per distinct table.
class Reducer {
 public:
  TablePool& pool() { return pool_; }
  const TablePool& pool() const { return pool_; }

  Core core_of(const Pbqp& problem);

  // Keeps the choices keep[v] of each variable (positions in core.choices[v], ascending). Requires:
  // at least one of each.
  Core restrict(const Core& core, const std::vector<std::vector<int32_t>>& keep);

  // Drops choices that another choice dominates for all choices of the neighbours (Goldstein,
  // https://doi.org/10.1016/S0006-3495(94)80923-3); of equal ones the higher. Turns variables with
  // one choice into constants. Returns false if a variable has no allowed choice.
  [[nodiscard]] bool remove_dead_ends(Core& core);

  // A table seen by its row variable or its column variable; -1: no table.
  struct Side {
    int32_t table = -1;
    bool column = false;
  };

  // Returns min over k of unary[k] + a(k, x) + b(k, y), less its minimum: a table over x and y, or
  // over x alone. Requires: a is a table.
  std::pair<int32_t, double> minimum_over(int32_t unary, Side a, Side b);

  // Returns the transposed table.
  int32_t transposed(int32_t table);

  // Returns the sum of two tables of equal sizes, less its minimum.
  std::pair<int32_t, double> sum(int32_t a, int32_t b);

 private:
  struct Incidence {
    int32_t edge = 0;
    bool column = false;  // the variable is the edge's v
  };
  using Incidences = std::vector<std::vector<Incidence>>;

  bool visit(Core& core, Incidences& incidences, int32_t v, std::vector<char>& pending);
  bool absorb(Core& core, Incidences& incidences, int32_t v, std::vector<char>& pending);
  const std::vector<int32_t>& survivors(int32_t unary,
                                        const std::vector<std::pair<int32_t, bool>>& tables);
  const std::vector<double>& regrets(int32_t table, bool column);
  int32_t kept_of(int32_t table, bool column, const std::vector<int32_t>& keep);
  std::pair<int32_t, double> plus_row(int32_t unary, int32_t table, bool column);

  TablePool pool_;
  std::map<std::pair<int32_t, bool>, std::vector<double>> regrets_;
  size_t regrets_held_ = 0;
  Memo<std::vector<int32_t>> survivors_;
  Memo<int32_t> kept_;
  std::unordered_map<int32_t, int32_t> transposed_;
  Memo<std::pair<int32_t, double>> plus_row_, minimum_over_, sum_;
};

}  // namespace medley::pbqp
