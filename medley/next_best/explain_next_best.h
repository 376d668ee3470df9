#pragma once

// Reports alternatives to a plan, per layer, and their cost: the best plan without the current
// division of a layer, an op or a parameter (next_best.h).

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "medley/cli/progress.h"
#include "medley/synthesis/request.h"

namespace medley {

// Returns a row per layer, per op that is not divided by rows, and per sharded parameter; repeated
// blocks are merged. Empty if there are no such decisions, or NextBest does not support the plan.
// Requires: `request` has costs and an analysis; the plan is verified.
nlohmann::ordered_json next_best_json(const Request& request, const Plan& plan, Progress& progress);
// Returns an empty text without rows.
std::string next_best_text(const nlohmann::ordered_json& rows);

}  // namespace medley
