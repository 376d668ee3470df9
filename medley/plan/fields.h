#pragma once

#include <nlohmann/json_fwd.hpp>

#include "medley/plan/plan.h"

namespace medley {

// Returns a plan as JSON, with fields in print order.
nlohmann::ordered_json to_ordered_json(const Plan& plan);

}  // namespace medley
