#pragma once

// Alternatives to a plan, per layer, and their cost: the best plan without the way in which a
// layer, an op or a parameter is divided now (next_best.h).

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "medley/cli/progress.h"
#include "medley/synthesis/request.h"

namespace medley {

// One row per layer, per op that is divided by something else than rows, and per parameter in
// shards; repeated blocks are one. Empty if there is nothing to ask about, or plans of this kind
// are not known. Requires: `request` has costs and an analysis; the plan is verified.
nlohmann::ordered_json next_best_json(const Request& request, const Plan& plan, Progress& progress);
// Empty if there are no rows.
std::string next_best_text(const nlohmann::ordered_json& rows);

}  // namespace medley
