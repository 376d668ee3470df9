#include "medley/groups/gradient_sums.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {

std::optional<Nanoseconds> GradientSums::fastest(const StageRange& stage, Bytes bytes) const {
  std::optional<Nanoseconds> least;
  if (bytes <= Bytes{}) return least;
  for (int to = 0; to < static_cast<int>(links.size()); ++to) {
    const std::optional<LinkCurve>& link = links[at(stage.pool)][at(to)];
    if (!link || (to == stage.pool && stage.devices == devices[at(to)])) continue;
    const Nanoseconds time = occupied(*link, bytes);
    least = std::min(least.value_or(time), time);
  }
  return least;
}

Nanoseconds GradientSums::about(const StageRange& stage, size_t pipelines) const {
  if (pipelines < 2) return {};
  const int nodes = std::max(1, stage.devices / per_node[at(stage.pool)]);
  const Bytes bytes{bytes_of(gradients, stage.begin, stage.end).value / nodes};
  const auto number = static_cast<int64_t>(pipelines);
  return fastest(stage, bytes).value_or(Nanoseconds{}) * (2 * (number - 1)) / number;
}

Nanoseconds GradientSums::at_least(const StageRange& stage) const {
  const int each = per_node[at(stage.pool)];
  if (stage.devices % each != 0) return {};
  const Bytes bytes{bytes_of(gradients, stage.begin, stage.end).value / (stage.devices / each)};
  return fastest(stage, bytes).value_or(Nanoseconds{});
}

std::optional<std::vector<std::vector<Nanoseconds>>> GradientSums::between(
    const std::vector<const PipelinePlan*>& pipelines) const {
  std::vector<std::vector<Nanoseconds>> sums(pipelines.size());
  const auto number = static_cast<int64_t>(pipelines.size());
  for (size_t p = 0; p < pipelines.size(); ++p)
    for (const PipelineStage& own : pipelines[p]->stages) {
      const StageRange& range = own.range;
      const int nodes = std::max(1, range.devices / per_node[at(range.pool)]);
      Nanoseconds& sum = sums[p].emplace_back();
      for (size_t q = 0; q < pipelines.size(); ++q)
        for (size_t s = 0; q != p && s < pipelines[q]->stages.size(); ++s) {
          const StageRange& other = pipelines[q]->stages[s].range;
          const Bytes both = bytes_of(
              gradients, std::max(range.begin, other.begin), std::min(range.end, other.end));
          if (both <= Bytes{}) continue;
          const std::optional<LinkCurve>& link = links[at(range.pool)][at(other.pool)];
          if (!link) return std::nullopt;
          sum += occupied(*link, {both.value * 2 / number / nodes});
        }
    }
  return sums;
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
