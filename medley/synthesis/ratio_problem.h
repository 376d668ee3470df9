#pragma once

// From a plan to the question how unevenly to divide it (solve/ratios.h), and back. The decisions
// stay: only the lengths of parts and the rows of devices may change.
//
// The program's own steps are followed in the order of its calls, with ops and communications
// priced by the cost model. A wait ends a segment where the communication, as posted by the last
// device, is still on its way; then the part of it that is not hidden is an exchange:
//
//   device 0   ops | post a | ops .. | wait a | ops ...... | post b | ops | wait b |
//   device 1   ops .. | post a | ops | wait a | ops ... | post b | ops .. | wait b |
//   network             a ===               |                 b ==========|
//              [ segment 1 .......................................... ]   [ exchange of b's rest ]
//
// What a device takes is read off at its present lengths and at longer ones of one part after the
// other, and taken to be linear between them. Devices of one kind have equal coefficients. Knows
// nothing of how decisions are found; the simulator has the last word on what it proposes.

#include <string>
#include <string_view>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/plan/plan.h"
#include "medley/program/program.h"
#include "medley/solve/ratios.h"

namespace medley {

// The parts of a ratio problem: "rows", if the micro-batches have lengths, then those of the plan.
std::vector<std::string> ratio_parts(const Plan& plan);

// [part][device] as the plan has them.
std::vector<std::vector<double>> present_shares(const Plan& plan);

// Requires: one stage, a mesh of one axis; `program` is the plan's.
RatioProblem ratio_problem(const Plan& plan, const Program& program, const CostModel& costs);

// Returns the plan with these shares: of the parts as they are, of the rows as integers such that
// the largest length per share is smallest, over as many micro-batches as before. Parts of exact
// lengths keep their sums. Requires: shares of ratio_parts(plan).
Plan with_ratios(const Plan& plan, const std::vector<std::vector<double>>& shares);

// The part that follows what devices have of memory, where that is short.
inline constexpr std::string_view kMemoryPart = "memory";
// Returns the plan with these shares of rows and of all parts but that by memory.
Plan with_shares(const Plan& plan, const std::vector<double>& shares);

}  // namespace medley
