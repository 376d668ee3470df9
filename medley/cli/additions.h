#pragma once

// Additions to verbs by modules above the command line. Only `command` knows the rows.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "medley/cli/arguments.h"
#include "medley/cli/progress.h"
#include "medley/plan/plan.h"
#include "medley/synthesis/request.h"

namespace medley {

// A search that replaces the usual one of `plan`.
struct PlanSearch {
  struct Found {
    Plan plan;
    nlohmann::ordered_json json;  // next to the plan's own, under the name of the addition
    std::string text;             // below the explanation of the plan
  };
  bool needs_prices = false;  // for the cluster
  std::function<std::variant<Found, Infeasible>(const Request& request)> find;
};

struct PlanAddition {
  std::string_view name;
  // Adds options to `plan`. After parsing, the result returns the search that they require. Throws
  // Error of the caller for invalid values.
  std::function<std::optional<PlanSearch>()> (*prepare)(Arguments& arguments);
};

struct ExplainAddition {
  std::string_view name;
  // Returns rows about a plan, possibly none. Requires: `request` has costs and an analysis; the
  // plan is verified.
  nlohmann::ordered_json (*find)(const Request& request, const Plan& plan, Progress& progress);
  std::string (*text)(const nlohmann::ordered_json& rows);  // readable form
};

struct Additions {
  std::vector<PlanAddition> plan;
  std::vector<ExplainAddition> explain;
};

}  // namespace medley
