#pragma once

// What ops and communications of a cluster cost: measured where there is a profile, else
// interpolated within a class of ops, else analytic (roofline, cost/op_time.h; rounds of messages,
// network/collectives.h). One answer for the planner, the simulator and reports.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/cost/op_time.h"
#include "medley/network/collectives.h"
#include "medley/profile/profile.h"

namespace medley {

enum class CostSource : uint8_t { kMeasured, kInterpolated, kAnalytic };
std::string to_string(CostSource source);  // "measured"

struct Cost {
  Nanoseconds value;
  CostSource source = CostSource::kAnalytic;
  bool operator==(const Cost&) const = default;
};

class CostModel {
 public:
  // Analytic only.
  explicit CostModel(const Cluster& cluster);
  // Throws Error(kCaller) if the profile is of other devices. Measured collectives change the
  // bandwidths and latencies of the networks that they went over, for everybody who asks.
  CostModel(const Cluster& cluster, const Profile& profile);
  CostModel(CostModel&&) noexcept;
  CostModel& operator=(CostModel&&) noexcept;
  ~CostModel();

  const Cluster& cluster() const { return topology_->cluster(); }  // as calibrated
  const Topology& topology() const { return *topology_; }

  // `kind`: of the cluster. Views and ops with nothing to do are free.
  Cost op(const DeviceKind& kind, const SizedOp& op) const;
  Cost op(const DeviceKind& kind,
          const Graph& graph,
          const Op& op,
          const std::vector<int64_t>& symbols) const;
  // A lower bound for all ways to divide an op: what takes part of its work takes at least that
  // share of this, whatever the sizes at which it was measured.
  Nanoseconds least(const DeviceKind& kind,
                    const Graph& graph,
                    const Op& op,
                    const std::vector<int64_t>& symbols) const;
  // The sum; its source is the least certain one.
  Cost ops(const DeviceKind& kind,
           const Graph& graph,
           std::span<const OpId> ops,
           const std::vector<int64_t>& symbols) const;
  // The cheapest algorithm, or the one that the measured library runs, if nothing else uses the
  // network. One device: free.
  Cost collective(const Collective& collective) const;
  // By how much ops of the kind slow down while it communicates; 1 if not measured.
  double overlap_slowdown(const DeviceKind& kind) const;

 private:
  struct Measured;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Measured> measured_;  // null: analytic only
};

}  // namespace medley
