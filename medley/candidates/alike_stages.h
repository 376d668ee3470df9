#pragma once

// Stages of repeated blocks compute the same but for names: what is decided about one holds for the
// others. Knows nothing of layers and costs.

#include <map>
#include <optional>
#include <string>

#include "medley/plan/plan.h"
#include "medley/prepare/prepare.h"

namespace medley {

struct Renaming {
  std::map<std::string, std::string> ops, inputs;
};

// Returns what the names of one stage are in another; nothing unless ops, types and connections are
// the same, in the same order.
std::optional<Renaming> renaming(const Prepared& from, const Prepared& to);

// What a plan says of the first stage, said of the second. Requires: no patterns.
Stage renamed(Stage stage, const Renaming& names);

}  // namespace medley
