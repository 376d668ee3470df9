#include "medley/candidates/candidate_places.h"

#include <string>
#include <utility>

#include "medley/base/at.h"

namespace medley {

CandidatePlaces::CandidatePlaces(const Request& asked,
                                 const std::vector<DevicePool>& own_pools,
                                 const std::vector<Layer>& own_layers)
    : request(asked),
      device_pools(own_pools),
      layers(own_layers),
      links(links_of(own_pools, asked.costs->topology())) {
  for (const DevicePool& pool : device_pools) {
    const Device& first = request.cluster.devices[at(pool.devices[0])];
    const int devices = static_cast<int>(pool.devices.size());
    pools.push_back({request.cluster.pools[at(first.pool)].name,
                     devices,
                     mesh_sizes(pool),
                     {static_cast<int64_t>(least_memory(request.cluster, pool.devices))},
                     devices <= pool.per_node});
    if (!pool.uniform)
      equivalent_nodes.emplace(static_cast<int>(&pool - device_pools.data()),
                               EquivalentNodes(request.cluster, topology(), pool.devices));
  }
  const Graph& graph = request.cache.analysis->graph;
  const std::map<std::string, ValueId> known = gradients_of(graph);
  std::set<ValueId> trained;
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kParameter && known.contains(input.name))
      trained.insert(input.value);
  std::map<ValueId, std::set<int>> readers;
  for (size_t l = 0; l < layers.size(); ++l) {
    Bytes& sum = gradients.emplace_back();
    for (const ValueId parameter : layers[l].parameters) {
      if (!trained.contains(parameter)) continue;
      readers[parameter].insert(static_cast<int>(l));
      sum += bytes({parameter}, 1);
    }
  }
  const int last = static_cast<int>(layers.size()) - 1;
  for (auto& [parameter, read] : readers) {
    if (read.size() == 1) continue;
    const Bytes size = bytes({parameter}, 1);
    if (read.contains(0) && read.contains(last)) shared += size;
    tied.push_back({size, std::move(read)});
  }
}

int64_t CandidatePlaces::rows(int64_t microbatches) const {
  return (request.global_batch + microbatches - 1) / microbatches;
}

int64_t CandidatePlaces::rows_of(const PipelineCandidate& pipeline) const {
  return pipeline.rows > 0 ? pipeline.rows : request.global_batch;
}

Bytes CandidatePlaces::bytes(const std::vector<ValueId>& values, int64_t rows) const {
  const Graph& graph = request.cache.analysis->graph;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), rows);
  return {evaluate(total_bytes(graph, values), symbols)};
}

std::vector<CutBytes> CandidatePlaces::cuts(int64_t rows) const {
  std::vector<CutBytes> all;
  for (size_t l = 0; l + 1 < layers.size(); ++l)
    all.push_back({bytes(layers[l].up, rows), bytes(layers[l].down, rows)});
  return all;
}

std::vector<CutBytes> CandidatePlaces::cuts(const PipelineCandidate& pipeline) const {
  return cuts((rows_of(pipeline) + pipeline.microbatches - 1) / pipeline.microbatches);
}

int CandidatePlaces::room(const StageOption& option,
                          const StageRange& range,
                          int most,
                          bool is_alone,
                          Bytes beside) const {
  const Bytes free = pools[at(range.pool)].memory - bytes_needed(option, 0);
  if (!is_alone && free < option.saved + held_while_summed(gradients, range)) return 0;
  if (free < beside) return 0;
  if (option.saved <= Bytes{}) return most;
  return static_cast<int>(std::min<int64_t>((free - beside).value / option.saved.value, most));
}

std::optional<Nanoseconds> CandidatePlaces::exchange(const std::vector<StageRange>& ranges) const {
  if (tied.empty()) return Nanoseconds{};
  const std::vector<std::vector<int>> devices = lay_out(device_pools, ranges);
  std::map<std::pair<int, int>, Nanoseconds> busy;  // [from pool, to pool]
  Nanoseconds most;
  for (const Tied& each : tied) {
    const auto reads = [&](size_t s) {
      const auto first = each.layers.lower_bound(ranges[s].begin);
      return first != each.layers.end() && *first < ranges[s].end;
    };
    for (size_t from = 0; from < ranges.size(); ++from)
      for (size_t to = 0; to < ranges.size(); ++to) {
        if (from == to || !reads(from) || !reads(to)) continue;
        const std::optional<Nanoseconds> time =
            exchange_time(link_of(topology(), devices[from][0], devices[to][0]), each.bytes);
        if (!time) return std::nullopt;
        Nanoseconds& sum = busy[{ranges[from].pool, ranges[to].pool}];
        sum += *time;
        most = std::max(most, sum);
      }
  }
  return most;
}

StageMesh CandidatePlaces::mesh(const StageRange& range) const {
  const DevicePool& pool = device_pools[at(range.pool)];
  StageMesh own{{pool.devices.begin(), pool.devices.begin() + range.devices}};
  if (pool.speeds.empty()) return own;
  std::ranges::sort(own.devices);  // as lay_out() does
  for (const int device : own.devices) own.speeds.push_back(pool.speeds.at(device));
  return own;
}

// Places the pipelines of a candidate in sequence, so that neighbours are near, or ordered by the
// first layers of their stages.
PlanDevices CandidatePlaces::devices_of(const PlanCandidate& candidate) const {
  std::vector<std::pair<size_t, size_t>> order;  // pipeline, stage
  for (size_t p = 0; p < candidate.pipelines.size(); ++p)
    for (size_t s = 0; s < candidate.pipelines[p].stages.size(); ++s) order.emplace_back(p, s);
  const auto range = [&](const std::pair<size_t, size_t>& place) -> const StageRange& {
    return candidate.pipelines[place.first].stages[place.second];
  };
  if (candidate.together == Together::kSameLayers)
    std::ranges::stable_sort(order, {}, [&](const auto& place) { return range(place).begin; });
  std::vector<StageRange> ranges;
  for (const auto& place : order) ranges.push_back(range(place));
  std::vector<std::vector<int>> devices = lay_out(device_pools, ranges);
  PlanDevices result;
  for (const PipelineCandidate& pipeline : candidate.pipelines)
    result.emplace_back(pipeline.stages.size());
  for (size_t i = 0; i < order.size(); ++i)
    result[order[i].first][order[i].second] = std::move(devices[i]);
  return result;
}

std::optional<PlanCandidate> CandidatePlaces::placed_otherwise(PlanCandidate candidate) const {
  const PlanDevices before = devices_of(candidate);
  candidate.together =
      candidate.together == Together::kNeighbours ? Together::kSameLayers : Together::kNeighbours;
  if (devices_of(candidate) == before) return std::nullopt;
  return candidate;
}

StageQuery CandidatePlaces::query(const PipelineCandidate& pipeline, size_t stage) const {
  const StageRange& range = pipeline.stages[stage];
  const auto equivalent = equivalent_nodes.find(range.pool);
  StageMesh own = mesh(range);
  if (equivalent != equivalent_nodes.end())
    own.devices =
        equivalent->second.first_equivalent(lay_out(device_pools, pipeline.stages)[stage]);
  return {range.begin, range.end, own, pipeline.configs[stage]};
}

}  // namespace medley
