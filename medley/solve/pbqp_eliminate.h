#pragma once

// Exact elimination of one variable after another: the minimum over a variable's choices becomes a
// table over its neighbours. The order decides how large these tables are. Private to pbqp*.cpp.
//
//   f(a, x) + g(x, b) + u(x)   =>   h(a, b) = min_x f(a, x) + g(x, b) + u(x)

#include <optional>

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

// An order, and what eliminating in it takes at most: entries of joint tables, result times choices
// of the variable. Joint tables of equal factors count once.
struct EliminationOrder {
  std::vector<int32_t> variables;
  double largest_table = 0, work = 0;
};

// Returns the order of least work among those that always take next the variable of least
//   result      size of the table it leaves,
//   fill        size of the tables between neighbours that had none,
//   growth      size of the table it leaves less the sizes of the ones it takes away;
// nothing if each of them passes a cap. Stops at an order of little work. Sizes only; touches no
// costs.
std::optional<EliminationOrder> find_order(const Core& core, double table_cap, double work_cap);

struct Elimination {
  enum class Outcome : uint8_t { kSolved, kInfeasible, kOutOfTime };
  Outcome outcome = Outcome::kSolved;
  std::vector<int32_t> choices;  // as the problem counts them
  double cost = 0;               // of the choices, the core's constant included
  int64_t largest_table = 0, work = 0;
};

Elimination eliminate(TablePool& pool,
                      const Core& core,
                      const EliminationOrder& order,
                      Clock::time_point deadline);

}  // namespace medley::pbqp
