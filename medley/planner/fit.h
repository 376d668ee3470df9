#pragma once

#include <optional>
#include <string>

#include "medley/planner/planner.h"
#include "medley/program/program.h"

namespace medley {

// Returns the sentence that says which device's memory does not hold the plan and by how much;
// nothing if all do. Lowers the plan, so that what is counted is what will run. All require that
// the request has ground.
std::optional<std::string> find_misfit(const Plan& plan, const Request& request);
// The same, if it is lowered already.
std::optional<std::string> find_misfit(const Plan& plan,
                                       const Program& program,
                                       const Request& request);

// The same sentence, and the smallest change found with which the plan would fit: more
// micro-batches, where rows do not meet; else a smaller batch, divided alike; else memory, and
// where. Lowers the plan up to a score of times. Requires: it does not fit.
std::string explain_misfit(const Plan& plan, const Request& request);

}  // namespace medley
