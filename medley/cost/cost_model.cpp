#include "medley/cost/cost_model.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/cost/calibrate.h"
#include "medley/cost/efficiency.h"
#include "medley/network/estimate.h"

namespace medley {
namespace {

constexpr size_t kNumClasses = at(WorkClass::kView);
constexpr size_t kNumDTypes = at(DType::kBool) + 1;

size_t slot(WorkClass work_class, DType dtype) { return at(work_class) * kNumDTypes + at(dtype); }

// Returns whether the type's figures give its compute time in this dtype.
bool has_roof(const DeviceKind& kind, const Work& work, DType dtype) {
  return work.flops <= 0 || kind.sustained.contains(is_floating(dtype) ? dtype : DType::kF32);
}

bool is_free(WorkClass work_class, const Work& work) {
  return work_class == WorkClass::kView || amount(work) <= 0;
}

}  // namespace

std::string to_string(CostSource source) {
  switch (source) {
    case CostSource::kMeasured:
      return "measured";
    case CostSource::kInterpolated:
      return "interpolated";
    case CostSource::kAnalytic:
      break;
  }
  return "analytic";
}

// Measurements per device type. Keys are 64-bit hashes: among a million the odds of a collision are
// 1 in 10^7, with a wrong time as only effect.
struct CostModel::Measured {
  struct Kind {
    std::unordered_map<uint64_t, Nanoseconds> times;  // by key_hash()
    std::array<std::optional<Efficiencies>, kNumClasses * kNumDTypes> efficiencies;
    double slowdown = 1;
  };
  std::map<std::string, Kind, std::less<>> kinds;
  bool collectives = false;

  Measured(const Profile& profile, const Cluster& cluster);
  Cost op(const DeviceKind& kind, std::string_view name, uint64_t hash, const OpWork& work) const;
  Nanoseconds least(const DeviceKind& kind, const OpWork& work, Nanoseconds analytic) const;
};

CostModel::Measured::Measured(const Profile& profile, const Cluster& cluster) {
  for (const NodePool& pool : cluster.pools) {
    const auto [place, is_new] = kinds.try_emplace(pool.kind.name);
    if (!is_new) continue;
    Kind& kind = place->second;
    std::array<std::vector<Efficiencies::Sample>, kNumClasses * kNumDTypes> samples;
    for (const OpMeasurement& each : profile.ops) {
      const SizedOp& op = each.op;
      if (each.kind != pool.kind.name || is_free(op.work_class, op.work)) continue;
      kind.times.emplace(key_hash(op.key), each.time);
      if (!has_roof(pool.kind, op.work, op.dtype)) continue;
      const Nanoseconds analytic = op_time(pool.kind, op.work_class, op.work, op.dtype);
      if (analytic.value > 0)
        samples[slot(op.work_class, op.dtype)].push_back(
            {op.op, {amount(op.work), each.time / analytic}});
    }
    for (size_t i = 0; i < samples.size(); ++i)
      if (!samples[i].empty()) kind.efficiencies[i].emplace(samples[i]);
  }
  for (const OverlapMeasurement& each : profile.overlaps)
    if (const auto kind = kinds.find(each.kind); kind != kinds.end())
      kind->second.slowdown = each.slowdown;
  collectives = !profile.collectives.empty();
}

Cost CostModel::Measured::op(const DeviceKind& kind,
                             std::string_view name,
                             uint64_t hash,
                             const OpWork& work) const {
  const auto of_kind = kinds.find(kind.name);
  MEDLEY_CHECK(of_kind != kinds.end());
  const auto& [times, efficiencies, slowdown] = of_kind->second;
  if (const auto time = times.find(hash); time != times.end())
    return {time->second, CostSource::kMeasured};
  const Nanoseconds analytic = op_time(kind, work.work_class, work.work, work.dtype);
  const auto& efficiency = efficiencies[slot(work.work_class, work.dtype)];
  if (!efficiency) return {analytic, CostSource::kAnalytic};
  const double ratio = efficiency->ratio(name, amount(work.work));
  return {to_nanoseconds(to_seconds(analytic) * ratio), CostSource::kInterpolated};
}

Nanoseconds CostModel::Measured::least(const DeviceKind& kind,
                                       const OpWork& work,
                                       Nanoseconds analytic) const {
  const auto of_kind = kinds.find(kind.name);
  MEDLEY_CHECK(of_kind != kinds.end());
  const auto& efficiency = of_kind->second.efficiencies[slot(work.work_class, work.dtype)];
  return efficiency ? to_nanoseconds(to_seconds(analytic) * efficiency->least()) : analytic;
}

CostModel::CostModel(const Cluster& cluster) : topology_(std::make_unique<Topology>(cluster)) {}
CostModel::CostModel(const Cluster& cluster, const Profile& profile) {
  verify(profile, cluster);
  Calibration calibration = calibrated(cluster, profile.collectives);
  topology_ = std::make_unique<Topology>(calibration.cluster, std::move(calibration.library));
  measured_ = std::make_unique<Measured>(profile, cluster);
}
CostModel::CostModel(CostModel&&) noexcept = default;
CostModel& CostModel::operator=(CostModel&&) noexcept = default;
CostModel::~CostModel() = default;

Cost CostModel::op(const DeviceKind& kind, const SizedOp& op) const {
  if (is_free(op.work_class, op.work)) return {{}, CostSource::kMeasured};
  const OpWork work{op.work_class, op.work, op.dtype};
  if (measured_) return measured_->op(kind, op.op, key_hash(op.key), work);
  return {op_time(kind, op.work_class, op.work, op.dtype), CostSource::kAnalytic};
}

Cost CostModel::op(const DeviceKind& kind,
                   const Graph& graph,
                   const Op& op,
                   const std::vector<int64_t>& symbols) const {
  const OpWork work = op_work(graph, op, symbols, kind.bf16_as);
  if (is_free(work.work_class, work.work)) return {{}, CostSource::kMeasured};
  if (measured_)
    return measured_->op(kind, op.name, key_hash(graph, op, symbols, kind.bf16_as), work);
  return {op_time(kind, work.work_class, work.work, work.dtype), CostSource::kAnalytic};
}

// Analytic times are proportional to work, except for the fixed time of an op; measured ones are
// multiples of them.
Nanoseconds CostModel::least(const DeviceKind& kind,
                             const Graph& graph,
                             const Op& op,
                             const std::vector<int64_t>& symbols) const {
  const OpWork work = op_work(graph, op, symbols, kind.bf16_as);
  if (is_free(work.work_class, work.work) || !has_roof(kind, work.work, work.dtype)) return {};
  const Nanoseconds analytic = op_time(kind, work.work_class, work.work, work.dtype);
  return measured_ ? measured_->least(kind, work, analytic) : analytic;
}

Cost CostModel::ops(const DeviceKind& kind,
                    const Graph& graph,
                    std::span<const OpId> ops,
                    const std::vector<int64_t>& symbols) const {
  Cost total{{}, CostSource::kMeasured};
  for (OpId id : ops) {
    const Cost each = op(kind, graph, graph.ops.at(at(id)), symbols);
    total.value += each.value;
    total.source = std::max(total.source, each.source);
  }
  return total;
}

Cost CostModel::collective(const Collective& collective) const {
  if (collective.devices.size() < 2) return {{}, CostSource::kMeasured};
  return {cheapest_estimate(collective, *topology_).time,
          measured_ && measured_->collectives ? CostSource::kInterpolated : CostSource::kAnalytic};
}

double CostModel::overlap_slowdown(const DeviceKind& kind) const {
  if (!measured_) return 1;
  const auto of_kind = measured_->kinds.find(kind.name);
  return of_kind == measured_->kinds.end() ? 1 : of_kind->second.slowdown;
}

}  // namespace medley
