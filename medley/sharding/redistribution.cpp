#include "medley/sharding/redistribution.h"

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr int kGrows = 3;

// Returns the rank of a step; steps of lower rank come first.
int rank_of(const AxisPlacement& from, const AxisPlacement& to) {
  if (from.holding == Holding::kReplicated) return 0;
  if (from.holding == Holding::kSharded) return to.holding == Holding::kSharded ? 2 : kGrows;
  return to.holding == Holding::kSharded ? 0 : 1;
}

}  // namespace

std::vector<RedistributionStep> redistribution_steps(const Placement& from, const Placement& to) {
  MEDLEY_CHECK(from.size() == to.size() && !from.empty() && from.size() <= 2);
  std::vector<RedistributionStep> steps;
  if (from.size() == 1) {
    if (from[0] != to[0]) steps.push_back({0, to[0]});
    return steps;
  }
  AxisPlacement inner = from[1];
  const bool outer_changes = from[0] != to[0];
  if (outer_changes && (are_nested(from[0], inner) || are_nested(to[0], inner))) {
    inner = replicated();
    steps.push_back({1, inner});
  }
  const RedistributionStep outer_step{0, to[0]}, inner_step{1, to[1]};
  if (!outer_changes || inner == to[1]) {
    if (outer_changes) steps.push_back(outer_step);
    if (inner != to[1]) steps.push_back(inner_step);
    return steps;
  }
  const int outer = rank_of(from[0], to[0]), within = rank_of(inner, to[1]);
  const bool outer_first = are_nested(from[0], to[1]) || are_nested(to[0], to[1]) ||
                           outer < within || (outer == within && outer == kGrows);
  steps.push_back(outer_first ? outer_step : inner_step);
  steps.push_back(outer_first ? inner_step : outer_step);
  return steps;
}

}  // namespace medley
