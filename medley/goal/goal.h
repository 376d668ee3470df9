#pragma once

// Selects the nodes to rent for `steps` steps: the cheapest before a deadline, or the fastest
// within a budget. Nodes of a pool are identical, so a set is a count per pool.
//
//   bounds of all sets (no plan takes less than its work) ──ascending──▶ plan ──▶ best so far
//     until no bound is below it
//
// Knows nothing of how plans are found.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "medley/synthesis/request.h"

namespace medley {

struct Goal {
  enum class Objective : uint8_t { kCost, kTime };
  Objective objective = Objective::kCost;
  int64_t steps = 0;
  std::optional<Seconds> deadline{};  // deadline of all steps
  std::optional<double> budget{};     // limit of the cost of all steps
};

// A plan with its nodes, time and cost. Used nodes are paid for the time of the steps.
struct GoalPlan {
  struct Nodes {
    std::string pool;
    int used = 0, of = 0;  // nodes
  };
  Plan plan;
  std::vector<Nodes> nodes;  // all pools that may be used
  Seconds time;              // for all steps
  double price_per_hour = 0, cost = 0;
  size_t planned = 0, sets = 0;  // sets of nodes: planned, and in all
  bool is_best = true;           // false: the time limit left sets unplanned
};

using GoalOutcome = std::variant<GoalPlan, Infeasible>;

// Searches sets of the request's devices; `within` is a share of the objective. Throws
// Error(kCaller) for an invalid goal, for too many sets, and as plan() does.
[[nodiscard]] GoalOutcome plan_for(const Goal& goal, const Request& request);

std::string run_time_text(Seconds time);  // "3.4 h"

}  // namespace medley
