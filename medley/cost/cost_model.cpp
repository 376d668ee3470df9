#include "medley/cost/cost_model.h"

#include <algorithm>

#include "medley/base/error.h"
#include "medley/network/estimate.h"

namespace medley {

struct CostModel::Measured {};

CostModel::CostModel(const Cluster& cluster) : topology_(std::make_unique<Topology>(cluster)) {}
CostModel::CostModel(const Cluster& cluster, const Profile& profile)
    : topology_(std::make_unique<Topology>(cluster)), measured_(std::make_unique<Measured>()) {
  verify(profile, cluster);
}
CostModel::~CostModel() = default;

Cost CostModel::op(const DeviceKind& kind, const SizedOp& op) const {
  return {op_time(kind, op.work_class, op.work, op.dtype), CostSource::kAnalytic};
}

Cost CostModel::op(const DeviceKind& kind,
                   const Graph& graph,
                   const Op& op,
                   const std::vector<int64_t>& symbols) const {
  return {op_time(kind, graph, op, symbols), CostSource::kAnalytic};
}

Cost CostModel::ops(const DeviceKind& kind,
                    const Graph& graph,
                    std::span<const OpId> ops,
                    const std::vector<int64_t>& symbols) const {
  Cost total{{}, CostSource::kMeasured};
  for (OpId id : ops) {
    const Cost each = op(kind, graph, graph.ops.at(static_cast<size_t>(id)), symbols);
    total.value += each.value;
    total.source = std::max(total.source, each.source);
  }
  return total;
}

Cost CostModel::collective(const Collective& collective) const {
  if (collective.devices.size() < 2) return {};
  return {cheapest_estimate(collective, *topology_).time, CostSource::kAnalytic};
}

double CostModel::overlap_slowdown(const DeviceKind&) const { return 1; }

}  // namespace medley
