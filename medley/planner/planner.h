#pragma once

// Finds a plan. A strategy is a row in a table; `auto` runs all of them and takes the plan with the
// shortest predicted step. Knows nothing of how plans are run.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/synthesis/request.h"

namespace medley {

// Throws Error(kCaller) for an invalid request: an unknown strategy or device, no rows, more
// micro-batches than rows.
[[nodiscard]] Outcome plan(const Request& request);
// Checks only the request's rows, micro-batches and devices.
void check(const Request& request);

// Returns short lines with the reasons why strategies find no plan, from (strategy, reason) pairs:
// each reason once, with its strategies, then the last advice.
std::vector<std::string> in_short(const std::vector<std::pair<std::string, Infeasible>>& reasons);

// Position of a strategy in `auto`: fast, good strategies run first, so later ones can stop early.
enum class AskedByAuto { kFirst, kNext, kLast, kNever };

struct Strategy {
  std::string_view name;
  std::string_view help;
  AskedByAuto asked_by_auto;
  Outcome (*plan)(const Request& request);
  // Returns a lower bound of the step of any plan of its search, in the search model. Requires:
  // `request` has costs and an analysis.
  Nanoseconds (*lower_bound)(const Request& request);
};
// Returns all strategies, `auto` first.
const std::vector<Strategy>& strategies();

// Returns the least bound of these strategies. Requires: names of the table; `request` has costs
// and an analysis.
Nanoseconds lower_bound(const std::vector<std::string>& strategies, const Request& request);

}  // namespace medley
