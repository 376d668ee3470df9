#pragma once

// Converts a plan to a problem of uneven shares (solve/ratios.h), and back. Decisions stay; only
// lengths of parts and rows of devices may change.
//
// Follows the program's steps in call order, with ops and communications priced by the cost model.
// A wait ends a segment if the communication, as posted by the last device, is still in transit;
// its exposed part is then an exchange:
//
//   device 0   ops | post a | ops .. | wait a | ops ...... | post b | ops | wait b |
//   device 1   ops .. | post a | ops | wait a | ops ... | post b | ops .. | wait b |
//   network             a ===               |                 b ==========|
//              [ segment 1 .......................................... ]   [ exchange of b's rest ]
//
// A device's time is sampled at its present lengths and at longer ones of one part at a time, and
// interpolated linearly. Devices of one type have equal coefficients. Knows nothing of how
// decisions are found. Proposals are accepted by simulated step.

#include <string>
#include <string_view>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"
#include "medley/solve/ratios.h"

namespace medley {

// Returns the parts of a ratio problem: "rows", if the micro-batches have lengths, then the plan's.
std::vector<std::string> ratio_parts(const Plan& plan);

// Returns the plan's shares, [part][device].
std::vector<std::vector<double>> present_shares(const Plan& plan);

// Requires: one stage, a mesh of one axis; `program` is the plan's.
RatioProblem ratio_problem(const Plan& plan, const Program& program, const CostModel& costs);

// Returns the plan with these shares. Rows become integers that minimise the largest length per
// share, over equally many micro-batches. Parts of exact lengths keep their sums. Requires: shares
// of ratio_parts(plan).
Plan with_ratios(const Plan& plan, const std::vector<std::vector<double>>& shares);

// Part in proportion to device memory, used if memory is short.
inline constexpr std::string_view kMemoryPart = "memory";
// Returns the plan with these shares of rows and of all parts but kMemoryPart.
Plan with_shares(const Plan& plan, const std::vector<double>& shares);

}  // namespace medley
