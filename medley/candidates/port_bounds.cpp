#include "medley/candidates/port_bounds.h"

#include <algorithm>
#include <map>

#include "medley/base/at.h"

namespace medley {
namespace {

using PortTimes = std::map<int, double>;  // [link] ns per step

// Returns the values that cross one cut and neither of two others: from a stage to the next.
std::vector<ValueId> only_at(const std::vector<ValueId>& cut,
                             const std::vector<ValueId>& before,
                             const std::vector<ValueId>& behind) {
  std::vector<ValueId> own;
  for (const ValueId value : cut)
    if (std::ranges::count(before, value) + std::ranges::count(behind, value) == 0)
      own.push_back(value);
  return own;
}

// Returns port times. A stage within a node exchanges all with stages on other nodes through the
// node's ports. If it has several whole nodes, one of them carries at least an equal part.
PortTimes port_times(const CandidatePlaces& places,
                     const PipelineCandidate& pipeline,
                     const std::vector<std::vector<int>>& devices) {
  const Topology& topology = places.topology();
  // Returns the values over the cut before a stage; none at the ends of the chain.
  const auto values = [&](size_t stage, std::vector<ValueId> Layer::*direction) {
    const bool is_cut = stage > 0 && stage < pipeline.stages.size();
    return is_cut ? places.layers[at(pipeline.stages[stage].begin - 1)].*direction
                  : std::vector<ValueId>{};
  };
  const auto bytes = [&](size_t stage, std::vector<ValueId> Layer::*direction) {
    const std::vector<ValueId> own = only_at(
        values(stage, direction), values(stage - 1, direction), values(stage + 1, direction));
    return static_cast<double>(places.bytes(own, places.rows_of(pipeline)).value);
  };
  PortTimes times;
  const auto add_to = [&](int link, double part) {
    times[link] += part / topology.links()[at(link)].bandwidth.value * 1e9;
  };
  // Adds the exchange of a stage with its neighbour.
  const auto add = [&](size_t stage, size_t neighbour, double sent, double received) {
    std::map<int, int> nodes;  // node -> first device of the stage
    for (const int device : devices[stage]) nodes.try_emplace(topology.node(device), device);
    const DevicePool& pool = places.device_pools[at(pipeline.stages[stage].pool)];
    const bool has_nodes = nodes.size() * at(pool.per_node) == devices[stage].size();
    if (nodes.size() > 1 && (!has_nodes || !pool.speeds.empty())) return;
    const int other = devices[neighbour].front();
    for (const int device : devices[neighbour])
      if (nodes.contains(topology.node(device))) return;
    const auto parts = static_cast<double>(nodes.size());
    for (const auto& [node, device] : nodes) {
      if (!link_of(topology, device, other) || !link_of(topology, other, device)) return;
      add_to(topology.path(device, other).links.front(), sent / parts);
      add_to(topology.path(other, device).links.back(), received / parts);
    }
  };
  for (size_t s = 1; s < pipeline.stages.size(); ++s) {
    const double up = bytes(s, &Layer::up), down = bytes(s, &Layer::down);
    add(s, s - 1, down, up);
    add(s - 1, s, up, down);
  }
  return times;
}

Nanoseconds least_step_of_any_rows(const CandidatePlaces& places, const PlanCandidate& candidate) {
  const PlanDevices devices = places.devices_of(candidate);
  double rows = 0, rate = 0;  // rows per ns, of all
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    double most = 0;
    for (const auto& [link, time] : port_times(places, candidate.pipelines[p], devices[p]))
      most = std::max(most, time);
    if (most == 0) return {};
    const auto own = static_cast<double>(places.rows_of(candidate.pipelines[p]));
    rows += own;
    rate += own / most;
  }
  return {static_cast<int64_t>(rows / rate)};
}

}  // namespace

Nanoseconds least_step(const CandidatePlaces& places, const PlanCandidate& candidate) {
  const PlanDevices devices = places.devices_of(candidate);
  PortTimes sums;
  for (size_t p = 0; p < candidate.pipelines.size(); ++p)
    for (const auto& [link, time] : port_times(places, candidate.pipelines[p], devices[p]))
      sums[link] += time;
  double most = 0;
  for (const auto& [link, time] : sums) most = std::max(most, time);
  return {static_cast<int64_t>(most)};
}

bool loses_by_ports(const CandidatePlaces& places, const PlanCandidate& candidate) {
  const std::optional<Nanoseconds>& known = places.request.faster_than;
  return known && least_step(places, candidate) >= *known;
}

bool cannot_win(const CandidatePlaces& places, const PlanCandidate& candidate) {
  const std::optional<Nanoseconds>& known = places.request.faster_than;
  if (!known || least_step_of_any_rows(places, candidate) < *known) return false;
  const std::optional<PlanCandidate> other = places.placed_otherwise(candidate);
  return !other || least_step_of_any_rows(places, *other) >= *known;
}

}  // namespace medley
