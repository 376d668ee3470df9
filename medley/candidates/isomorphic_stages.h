#pragma once

// Stages of repeated blocks differ only in names, so a decision about one is valid for all. Knows
// nothing of layers and costs.

#include <map>
#include <optional>
#include <string>

#include "medley/plan/plan.h"
#include "medley/prepare/prepare.h"

namespace medley {

struct Renaming {
  std::map<std::string, std::string> ops, inputs;
};

// Returns the map from names of `from` to names of `to`. Returns nullopt unless ops, types and
// connections are identical and in the same order.
std::optional<Renaming> renaming(const Prepared& from, const Prepared& to);

// Returns the decisions of a stage under the names of another. Requires: no patterns.
Stage renamed(Stage stage, const Renaming& names);

}  // namespace medley
