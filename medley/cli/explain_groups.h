#pragma once

// A plan with decisions for every op, as the search makes it, on less than a page: how many ops of
// which module are divided by what, and only what is unusual one by one.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "medley/cli/explain_words.h"

namespace medley {

// `ops`: of a plan or of what became of it. `stored`: states of parameters.
nlohmann::ordered_json groups_json(const Plan& plan,
                                   const std::vector<Said>& ops,
                                   const std::vector<Said>& stored);
std::string groups_text(const nlohmann::ordered_json& groups);
// The same of what a plan says where no graph tells how many ops and parameters it says it of.
std::string said_text(const nlohmann::ordered_json& groups);

// What divides an op of this choice: a part, "replicated" or "partial".
std::string divided_by(const std::string& choice);
bool is_undivided(const std::string& by);

// "h.3.mlp.up" -> "h.*.mlp.up": repeated blocks have one name.
std::string block_pattern(const std::string& name);
// "h.3.mlp.up/~mm#0" -> "h.*.mlp": the block of an op and one name more. Ops outside of any module
// are of "(the model)", what accumulates and updates parameters of "(parameters)".
std::string module_pattern(const std::string& op_name);

}  // namespace medley
