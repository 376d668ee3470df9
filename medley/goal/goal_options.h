#pragma once

// Options of `medley plan` for the purpose of rented nodes, and the output for it.

#include <functional>
#include <optional>

#include "medley/cli/additions.h"

namespace medley {

std::function<std::optional<PlanSearch>()> prepare_goal(Arguments& arguments);

}  // namespace medley
