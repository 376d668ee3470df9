#pragma once

// The short texts of a plan.

#include <optional>
#include <string>
#include <vector>

#include "medley/lower/lower.h"
#include "medley/plan/plan.h"
#include "medley/plan/texts.h"

namespace medley {

// The stable name of an op or a value, and the text of its choice or placement.
struct Said {
  std::string name;
  std::string text;
};

// Returns "dim 0 divided 24, 8", with "; " between two axes; "" for no axes.
std::string words(const Plan& plan, const std::optional<std::vector<PlacementText>>& axes);
std::string words(const Plan& plan, const std::optional<std::vector<ChoiceText>>& axes);

// Returns "11 x 8, 10": equal neighbours once, with their count.
std::string runs_text(const std::vector<int64_t>& lengths);

// Returns the text for the owners of an update: "divided 3 : 1 over pipelines".
std::string owner_words(const Plan& plan, const std::string& text);

// Returns the plan's text of a placement: "S(0, rows)".
std::string placement_text(const Completed& completed, ValueId value, const Placement& placement);
std::string choices_text(const Completed& completed, OpId op);
// Returns the texts of all ops, and of all parameters.
std::vector<Said> ops_said(const Completed& completed);
std::vector<Said> parameters_said(const Completed& completed);

}  // namespace medley
