#pragma once

// A plan with decisions for every op on less than a page: the number of ops per module and
// division, and single ops only for exceptions.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "medley/cli/explain_words.h"

namespace medley {

// Returns the page. `ops`: of a plan or of its expansion. `stored`: placements of parameters.
nlohmann::ordered_json groups_json(const Plan& plan,
                                   const std::vector<Said>& ops,
                                   const std::vector<Said>& stored);
std::string groups_text(const nlohmann::ordered_json& groups);
// Returns the text for a plan without a graph, so without counts of ops and parameters.
std::string said_text(const nlohmann::ordered_json& groups);

// Returns the division of an op: a part, "replicated" or "partial".
std::string divided_by(const std::string& choice);
bool is_undivided(const std::string& by);

// Returns "h.*.mlp.up" for "h.3.mlp.up", so that repeated blocks have one name.
std::string block_pattern(const std::string& name);
// Returns "h.*.mlp" for "h.3.mlp.up/~mm#0": the block of an op and one more name. Ops outside of
// modules give "(the model)", ops that accumulate and update parameters "(parameters)".
std::string module_pattern(const std::string& op_name);

}  // namespace medley
