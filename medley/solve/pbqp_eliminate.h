#pragma once

// Exact elimination of variables in sequence: the minimum over a variable's choices becomes a table
// over its neighbours. The order determines the sizes of these tables. Private to pbqp*.cpp.
//
//   f(a, x) + g(x, b) + u(x)   =>   h(a, b) = min_x f(a, x) + g(x, b) + u(x)

#include <optional>

#include "medley/solve/pbqp_core.h"

namespace medley::pbqp {

// An order, with upper bounds of its cost: entries of joint tables, result times choices of the
// variable. Joint tables of equal factors count once.
struct EliminationOrder {
  std::vector<int32_t> variables;
  double largest_table = 0, work = 0;
};

// Returns the order of least work among greedy orders by the least
//   - result: size of the table that it leaves;
//   - fill: size of the tables between neighbours without one;
//   - growth: size of the table that it leaves less the sizes of those that it removes.
// Returns nullopt if each order exceeds a cap. Stops at an order of little work. Uses sizes only,
// no costs.
std::optional<EliminationOrder> find_order(const Core& core, double table_cap, double work_cap);

struct Elimination {
  enum class Outcome : uint8_t { kSolved, kInfeasible, kOutOfTime };
  Outcome outcome = Outcome::kSolved;
  std::vector<int32_t> choices;  // as the problem counts them
  double cost = 0;               // includes the core's constant
  int64_t largest_table = 0, work = 0;
};

Elimination eliminate(TablePool& pool,
                      const Core& core,
                      const EliminationOrder& order,
                      Clock::time_point deadline);

}  // namespace medley::pbqp
