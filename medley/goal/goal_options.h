#pragma once

// The options of `medley plan` that say what nodes are rented for, and what it says of the answer.

#include <functional>
#include <optional>

#include "medley/cli/additions.h"

namespace medley {

std::function<std::optional<PlanSearch>()> prepare_goal(Arguments& arguments);

}  // namespace medley
