#pragma once

// Additions to verbs by rooms above the command line. `command` has the table of them and gives it
// to run_cli(); no room here or below knows its rows.

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

// A search that options of `plan` ask for in place of the usual one.
struct PlanSearch {
  struct Found {
    Plan plan;
    nlohmann::ordered_json json;  // beside the plan's own, under the name of the addition
    std::string text;             // below the explanation of the plan
  };
  bool needs_prices = false;  // of the cluster
  std::function<std::variant<Found, Infeasible>(const Request& request)> find;
};

struct PlanAddition {
  std::string_view name;
  // Adds options to `plan`. The result gives, once they are parsed, the search that they ask for;
  // it throws Error of the caller for values that make no sense.
  std::function<std::optional<PlanSearch>()> (*prepare)(Arguments& arguments);
};

struct ExplainAddition {
  std::string_view name;
  // Rows about a plan, empty where there is nothing to say. Requires: `request` has costs and an
  // analysis; the plan is verified.
  nlohmann::ordered_json (*find)(const Request& request, const Plan& plan, Progress& progress);
  std::string (*text)(const nlohmann::ordered_json& rows);  // for people
};

struct Additions {
  std::vector<PlanAddition> plan;
  std::vector<ExplainAddition> explain;
};

}  // namespace medley
