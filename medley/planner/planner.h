#pragma once

// Finds a plan. A strategy is a row in a table; `auto` asks all of them and takes the plan whose
// predicted step is shortest. Knows nothing of how plans are run.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/synthesis/request.h"

namespace medley {

// Throws Error(kCaller) for a request that makes no sense: an unknown strategy or device, no rows,
// more micro-batches than rows.
[[nodiscard]] Outcome plan(const Request& request);
// The same for its rows, micro-batches and devices alone.
void check(const Request& request);

// Returns in short lines why strategies find no plan, from pairs of a strategy and its reason:
// each reason once, with the strategies that it holds for, then the last advice.
std::vector<std::string> in_short(const std::vector<std::pair<std::string, Infeasible>>& reasons);

// When `auto` asks a strategy: those that are quick for what they find come first, so that the
// others may give up.
enum class AskedByAuto { kFirst, kNext, kLast, kNever };

struct Strategy {
  std::string_view name;
  std::string_view help;
  AskedByAuto asked_by_auto;
  Outcome (*plan)(const Request& request);
  // Of the step of any plan of its search, in the model that it searches with. Requires: `request`
  // has costs and an analysis.
  Nanoseconds (*lower_bound)(const Request& request);
};
// All, `auto` first.
const std::vector<Strategy>& strategies();

// The least of the bounds of these strategies. Requires: names of the table; `request` has costs
// and an analysis.
Nanoseconds lower_bound(const std::vector<std::string>& strategies, const Request& request);

}  // namespace medley
