#pragma once

#include <string>
#include <vector>

#include "medley/plan/plan.h"

namespace medley {

// Merges entries of repeated blocks, which differ only in numbers of their module path, into one
// entry with "*". ChoiceFinder results stay equal for every name with an entry. `op_names`: of all
// ops; those without an entry stay without one.
//
//   h.0.mlp/mm#0: n speed, h.1.mlp/mm#0: n speed   =>   h.*.mlp/mm#0: n speed
void shorten(Stage& stage, const std::vector<std::string>& op_names);

// Drops unused parts. Drops the lengths of micro-batches if no batch input and no op is divided by
// rows, so that every device has all of them. Requires: one stage with a choice for every op and a
// placement for every batch input, or for none of them.
void drop_unused_parts(Plan& plan);

}  // namespace medley
