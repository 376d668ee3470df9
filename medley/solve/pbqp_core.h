#pragma once

// What the methods of pbqp.h share: hash-consed cost tables, and the core of a problem that is left
// when choices that cannot be best are gone. Private to pbqp*.cpp.
//
// Inside, costs are doubles that hold integers: all that matter are below kForbidden = 2^50, hence
// exact, and two fit into the smallest vector register, which has a minimum of doubles but not of
// 64-bit integers. A sum at or above kForbidden may round; it is forbidden all the same.

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

// Of any number of dimensions, the last one contiguous: a unary has one, an edge two, the result of
// an elimination as many as the variable had neighbours.
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

// Equal tables get equal ids, so that work on them is remembered by id.
class TablePool {
 public:
  int32_t add(Table table);
  // The same less its minimum, which is returned too; forbidden entries stay forbidden. If all are
  // forbidden the minimum is kNever.
  std::pair<int32_t, double> add_less_minimum(Table table);
  const Table& operator[](int32_t id) const { return tables_[at(id)]; }

 private:
  std::deque<Table> tables_;
  std::unordered_map<uint64_t, std::vector<int32_t>> ids_;  // [hash]
};

struct CoreEdge {
  int32_t u = 0, v = 0, table = 0;  // u < v; u picks the row
};

// A problem after some of its choices were dropped. A variable with one choice left has no unary
// and no edges: its costs are in its neighbours' and in `constant`. Edges are sorted; none are
// parallel.
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

// Work on tables that is done once per table, however often the table occurs.
class Reducer {
 public:
  TablePool& pool() { return pool_; }
  const TablePool& pool() const { return pool_; }

  Core core_of(const Pbqp& problem);

  // Keeps keep[v] of the choices of each variable (positions in core.choices[v], ascending).
  // Requires: at least one of each.
  Core restrict(const Core& core, const std::vector<std::vector<int32_t>>& keep);

  // Drops choices that another choice of the same variable is never worse than, whatever the
  // neighbours choose (Goldstein, https://doi.org/10.1016/S0006-3495(94)80923-3), the higher one of
  // equals; and makes constants of variables with one choice left. Returns false if some variable
  // has no choice that is allowed.
  [[nodiscard]] bool remove_dead_ends(Core& core);

  // A table as a variable sees it that picks its row, or its column; table -1 is no table.
  struct Side {
    int32_t table = -1;
    bool column = false;
  };

  // min over k of unary[k] + a(k, x) + b(k, y), less its minimum: a table over x and y, or over x
  // alone. Requires: a is a table.
  std::pair<int32_t, double> minimum_over(int32_t unary, Side a, Side b);

  // The table with rows for columns.
  int32_t transposed(int32_t table);

  // The sum of two tables of the same sizes, less its minimum.
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
