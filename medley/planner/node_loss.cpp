#include "medley/planner/node_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/elastic/state_replicas.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

constexpr int64_t kLeastSteps = 2;
constexpr Nanoseconds kNever{int64_t{1} << 60};

}  // namespace

int64_t steps_between_copies(Nanoseconds copies, Nanoseconds step) {
  if (step.value <= 0) return kLeastSteps;
  return std::max(kLeastSteps, (kShareOfCopies * copies.value + step.value - 1) / step.value);
}

Nanoseconds ReplicationCost::costs() const {
  if (without > 0) return kNever;
  return every == 0 ? Nanoseconds{} : Nanoseconds{copies.value / every};
}

ReplicationCost replication_cost(const Program& program, const Cluster& cluster, Nanoseconds step) {
  const Neighbourhood places = neighbourhood_of(program, cluster);
  const StateReplicas replicas = state_replicas(program, places);
  ReplicationCost result;
  result.without = replicas.without;
  std::map<int, double> sends, receives;  // seconds, by device
  for (const StateReplica& replica : replicas.replicas) {
    const double takes =
        static_cast<double>(replica.bytes()) * places.byte_time(replica.from, replica.to);
    result.bytes += replica.bytes();
    sends[replica.from] += takes;
    receives[replica.to] += takes;
  }
  double most = 0;
  for (const auto* each : {&sends, &receives})
    for (const auto& [device, seconds] : *each) most = std::max(most, seconds);
  result.copies = to_nanoseconds(Seconds{most});
  if (replicas.replicas.empty()) return result;
  result.every = steps_between_copies(result.copies, step);
  return result;
}

std::string to_string(const ReplicationCost& replication_cost, Nanoseconds step) {
  if (replication_cost.without > 0) return cannot_tolerate_node_loss(replication_cost);
  if (replication_cost.every == 0)
    return "any node may be lost: all of the state is on two or more";
  return fmt::format(
      "any node may be lost: {} that only one has are copied to others every {} steps, {:.2g} % of "
      "the time",
      to_string(Bytes{replication_cost.bytes}),
      replication_cost.every,
      100 * (replication_cost.costs() / step));
}

std::string cannot_tolerate_node_loss(const ReplicationCost& replication_cost) {
  return fmt::format("{} of the state are on one node, and no other node has memory for a copy",
                     to_string(Bytes{replication_cost.without}));
}

}  // namespace medley
