// What ports carry of a candidate, and how long no step is for that, whatever its schedule and
// whatever else they carry.

#include <algorithm>

#include "medley/base/at.h"
#include "medley/candidates/candidates.h"

namespace medley {
namespace {

// Values that cross one cut and neither of two others: what one stage makes and the next one reads.
std::vector<ValueId> only_at(const std::vector<ValueId>& cut,
                             const std::vector<ValueId>& before,
                             const std::vector<ValueId>& behind) {
  std::vector<ValueId> own;
  for (const ValueId value : cut)
    if (std::ranges::count(before, value) + std::ranges::count(behind, value) == 0)
      own.push_back(value);
  return own;
}

}  // namespace

// A stage that lies within a node exchanges all with stages on other nodes through its ports; of
// one that has several nodes for itself, those of one of them carry an equal part at least.
CandidateSet::PortTimes CandidateSet::port_times(
    const PipelineCandidate& pipeline, const std::vector<std::vector<int>>& devices) const {
  const Topology& topology = request_.costs->topology();
  const Graph& graph = request_.analysis->graph;
  const std::vector<Layer>& layers = synthesis_.layers().layers;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), rows_of(pipeline));
  // What crosses the cut in front of a stage; nothing at the ends of the chain.
  const auto values = [&](size_t stage, std::vector<ValueId> Layer::*direction) {
    const bool is_cut = stage > 0 && stage < pipeline.stages.size();
    return is_cut ? layers[at(pipeline.stages[stage].begin - 1)].*direction
                  : std::vector<ValueId>{};
  };
  const auto bytes = [&](size_t stage, std::vector<ValueId> Layer::*direction) {
    const std::vector<ValueId> own = only_at(
        values(stage, direction), values(stage - 1, direction), values(stage + 1, direction));
    return static_cast<double>(medley::evaluate(total_bytes(graph, own), symbols));
  };
  PortTimes times;
  const auto add_to = [&](int link, double part) {
    times[link] += part / topology.links()[at(link)].bandwidth.value * 1e9;
  };
  // Of what a stage exchanges with its neighbour.
  const auto add = [&](size_t stage, size_t neighbour, double sent, double received) {
    std::map<int, int> nodes;  // -> its first device of the stage
    for (const int device : devices[stage]) nodes.try_emplace(topology.node(device), device);
    const DevicePool& pool = pools_[at(pipeline.stages[stage].pool)];
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

Nanoseconds CandidateSet::least_step(const PlanCandidate& candidate) const {
  const std::vector<std::vector<std::vector<int>>> devices = devices_of(candidate);
  PortTimes sums;
  for (size_t p = 0; p < candidate.pipelines.size(); ++p)
    for (const auto& [link, time] : port_times(candidate.pipelines[p], devices[p]))
      sums[link] += time;
  double most = 0;
  for (const auto& [link, time] : sums) most = std::max(most, time);
  return {static_cast<int64_t>(most)};
}

Nanoseconds CandidateSet::least_step_of_any_rows(const PlanCandidate& candidate) const {
  const std::vector<std::vector<std::vector<int>>> devices = devices_of(candidate);
  double rows = 0, rate = 0;  // rows a nanosecond, of all
  for (size_t p = 0; p < candidate.pipelines.size(); ++p) {
    double most = 0;
    for (const auto& [link, time] : port_times(candidate.pipelines[p], devices[p]))
      most = std::max(most, time);
    if (most == 0) return {};
    const auto own = static_cast<double>(rows_of(candidate.pipelines[p]));
    rows += own;
    rate += own / most;
  }
  return {static_cast<int64_t>(rows / rate)};
}

bool CandidateSet::cannot_win(const PlanCandidate& candidate) const {
  if (!request_.faster_than) return false;
  const auto loses = [&](const PlanCandidate& placed) {
    return is_slower_than_known(least_step_of_any_rows(placed));
  };
  if (!loses(candidate)) return false;
  const std::optional<PlanCandidate> other = placed_otherwise(candidate);
  return !other || loses(*other);
}

}  // namespace medley
