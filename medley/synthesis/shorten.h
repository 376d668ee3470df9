#pragma once

#include <string>
#include <vector>

#include "medley/plan/plan.h"

namespace medley {

// Rewrites the entries of a stage so that those of repeated blocks, which differ in numbers of
// their module path only, become one entry with "*". What a ChoiceFinder answers for every name
// that had an entry stays the same. `op_names`: of all ops; one without an entry stays without.
//
//   h.0.mlp/mm#0: n speed, h.1.mlp/mm#0: n speed   =>   h.*.mlp/mm#0: n speed
void shorten(Stage& stage, const std::vector<std::string>& op_names);

// Drops parts that divide nothing, and the lengths of micro-batches if no batch input and no op is
// divided by rows: then every device has all of them. Requires: one stage, which says a choice for
// every op and a state for every batch input, or for none of them.
void drop_unused_parts(Plan& plan);

}  // namespace medley
