#include "medley/groups/gradient_sums.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {
namespace {

Bytes bytes_of(const std::vector<Bytes>& gradients, const StageRange& stage) {
  Bytes sum;
  for (int l = stage.begin; l < stage.end && !gradients.empty(); ++l) sum += gradients[at(l)];
  return sum;
}

}  // namespace

Nanoseconds GradientSums::about(const StageRange& stage, size_t pipelines) const {
  if (pipelines < 2) return {};
  const int nodes = std::max(1, stage.devices / per_node[at(stage.pool)]);
  const Bytes bytes{bytes_of(gradients, stage).value / nodes};
  Nanoseconds longest;
  for (const auto& link : links[at(stage.pool)])
    if (link && bytes > Bytes{}) longest = std::max(longest, occupied(*link, bytes));
  const auto number = static_cast<int64_t>(pipelines);
  return longest * (2 * (number - 1)) / number;
}

Nanoseconds GradientSums::at_least(const StageRange& stage) const {
  const int each = per_node[at(stage.pool)];
  if (stage.devices % each != 0) return {};
  const Bytes bytes{bytes_of(gradients, stage).value / (stage.devices / each)};
  std::optional<Nanoseconds> least;
  for (const auto& link : links[at(stage.pool)])
    if (link && bytes > Bytes{}) {
      const Nanoseconds time = occupied(*link, bytes);
      least = std::min(least.value_or(time), time);
    }
  return least.value_or(Nanoseconds{});
}

Nanoseconds after_last_backward(const PipelinePlan& plan, const std::vector<Nanoseconds>& sums) {
  Nanoseconds after;
  for (size_t s = plan.stages.size(); s-- > 0;) {
    const StageOption& option = plan.stages[s].option;
    if (s < plan.boundaries.size()) {
      const BoundaryTimes& boundary = plan.boundaries[s];
      after = after - option.backward - boundary.backward - boundary.latency;
    }
    after = std::max(option.update + sums[s], after);
  }
  return after;
}

}  // namespace medley
