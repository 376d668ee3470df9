#pragma once

// Which nodes to rent. Of all sets of nodes the one whose plan makes so many steps most cheaply and
// ends in time, or the one that ends first for so much money. Nodes of a pool are alike: a set is
// how many there are of each.
//
//   bounds of all sets (no plan takes less than its work) ──ascending──▶ plan ──▶ best so far
//     until no bound is below it
//
// Nothing here knows how plans are found.

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
  std::optional<Seconds> by{};     // all steps have to be done by then
  std::optional<double> budget{};  // what all steps may cost
};

// A plan, its nodes, time and cost. The nodes that it uses are paid for as long as the steps take.
struct GoalPlan {
  struct Nodes {
    std::string pool;
    int used = 0, of = 0;  // nodes
  };
  Plan plan;
  std::vector<Nodes> nodes;  // of all pools that may be used
  Seconds time;              // of all steps
  double price_per_hour = 0, cost = 0;
  size_t planned = 0, sets = 0;  // how many sets of nodes were planned, and how many there are
  bool is_best = true;           // else others were not looked at: the time was over
};

using GoalOutcome = std::variant<GoalPlan, Infeasible>;

// Sets of the request's devices are searched; `within` of the request is a share of what is aimed
// at. Throws Error(kCaller) for a goal that makes no sense, for too many sets, and as plan() does.
[[nodiscard]] GoalOutcome plan_for(const Goal& goal, const Request& request);

std::string run_time_text(Seconds time);  // "3.4 h"

}  // namespace medley
