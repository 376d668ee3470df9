#pragma once

// Costs of ops and communications of a cluster. They are measured if a profile has them, else
// interpolated within a class of ops. The last resort is analytic: a roofline (cost/op_time.h) or
// rounds of messages (network/collectives.h). Shared by planner, simulator and reports.

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
  // Uses analytic costs only.
  explicit CostModel(const Cluster& cluster);
  // Throws Error(kCaller) if the profile is of other devices. Measured collectives change the
  // bandwidths and latencies of their networks for all users of this model.
  CostModel(const Cluster& cluster, const Profile& profile);
  CostModel(CostModel&&) noexcept;
  CostModel& operator=(CostModel&&) noexcept;
  ~CostModel();

  const Cluster& cluster() const { return topology_->cluster(); }  // as calibrated
  const Topology& topology() const { return *topology_; }

  // Returns the cost on `kind`, a type of the cluster. Views and empty ops are free.
  Cost op(const DeviceKind& kind, const SizedOp& op) const;
  Cost op(const DeviceKind& kind,
          const Graph& graph,
          const Op& op,
          const std::vector<int64_t>& symbols) const;
  // Returns a lower bound for every division of an op: a part of its work takes at least that share
  // of the bound, for all measured sizes.
  Nanoseconds least(const DeviceKind& kind,
                    const Graph& graph,
                    const Op& op,
                    const std::vector<int64_t>& symbols) const;
  // Returns the sum; its source is the least certain one.
  Cost ops(const DeviceKind& kind,
           const Graph& graph,
           std::span<const OpId> ops,
           const std::vector<int64_t>& symbols) const;
  // Returns the cost on an idle network of the measured library's algorithm, else of the cheapest
  // one. A collective of one device is free.
  Cost collective(const Collective& collective) const;
  // Returns the slow-down of ops of the type while it communicates; 1 if not measured.
  double overlap_slowdown(const DeviceKind& kind) const;

 private:
  struct Measured;
  std::unique_ptr<Topology> topology_;
  std::unique_ptr<Measured> measured_;  // null: analytic only
};

}  // namespace medley
