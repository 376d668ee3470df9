#include "medley/planner/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/pipelines/candidates.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

constexpr int kLayersPerBlock = 1;
constexpr int kMostPriced = 4;  // grids that are lowered and simulated
// Of what the flops of a stage's layers take by themselves: ops differ in what they reach.
constexpr double kOfBound = 0.9;

// Runs of layers that differ by one at most.
std::vector<StageRange> even_ranges(int layers, int stages, int devices) {
  std::vector<StageRange> ranges;
  for (int s = 0; s < stages; ++s)
    ranges.push_back({layers * s / stages, layers * (s + 1) / stages, 0, devices});
  return ranges;
}

// Devices that divide tensors: powers of two within the smallest node, and all.
std::vector<int> tensor_degrees(const Request& request, const std::vector<int>& all, int devices) {
  int smallest = devices;
  for (const std::vector<int>& node : by_node(request.cluster, all))
    smallest = std::min(smallest, static_cast<int>(node.size()));
  std::vector<int> degrees;
  for (int degree = 1; degree <= smallest && degree < devices; degree *= 2)
    if (devices % degree == 0) degrees.push_back(degree);
  degrees.push_back(devices);
  return degrees;
}

// Nanoseconds that the whole model takes a device alone at least, by flops: [device].
std::vector<double> times_alone(const Request& request, const std::vector<int>& devices) {
  std::map<const DeviceKind*, double> by_kind;
  std::vector<double> times;
  for (const int device : devices) {
    const auto [found, is_new] = by_kind.try_emplace(&request.cluster.kind(device));
    if (is_new) {
      Request alone = request;
      alone.devices = {request.cluster.devices[at(device)].name};
      found->second = static_cast<double>(work_bound(alone).value);
    }
    times.push_back(found->second);
  }
  return times;
}

// What the stage takes at least that has most to do for its slowest device, in flops of layers.
Nanoseconds least_step(const std::vector<Layer>& layers,
                       const std::vector<StageRange>& stages,
                       const std::vector<double>& alone) {
  const auto flops = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t l = begin; l < end; ++l) sum += layers[l].flops + layers[l].backward_flops;
    return sum;
  };
  const double all = flops(0, layers.size());
  double most = 0;
  auto device = alone.begin();
  for (const StageRange& stage : stages) {
    const double slowest = *std::max_element(device, device + stage.devices);
    const double part = flops(at(stage.begin), at(stage.end)) / all;
    most = std::max(most, slowest * part / stage.devices);
    device += stage.devices;
  }
  return {static_cast<int64_t>(most * kOfBound)};
}

}  // namespace

Outcome megatron(const Request& request) {
  if (std::optional<Infeasible> no = rows_meet(request)) return std::move(*no);
  const std::vector<int> devices = devices_of(request);
  const int all = static_cast<int>(devices.size());
  const std::vector<DevicePool> pools{{devices, all, false}};
  const std::shared_ptr<StageSynthesis> stages_found = stages_of(request, kLayersPerBlock);
  StageSynthesis& synthesis = *stages_found;
  CandidateSet candidates(request, pools, synthesis);
  const int layers = static_cast<int>(synthesis.layers().layers.size());
  const std::vector<double> alone =
      request.faster_than ? times_alone(request, devices) : std::vector<double>{};
  for (int stages = 1; stages <= std::min(all, layers); ++stages) {
    if (all % stages != 0) continue;
    report(
        request, fmt::format("megatron: {} stages", stages), at(stages), at(std::min(all, layers)));
    const int each = all / stages;
    const std::vector<StageRange> ranges = even_ranges(layers, stages, each);
    if (request.faster_than &&
        least_step(synthesis.layers().layers, ranges, alone) >= *request.faster_than)
      continue;
    std::vector<PlanCandidate> grids;
    for (int64_t count : microbatch_counts(request))
      for (const int degree : tensor_degrees(request, devices, each)) {
        StageConfig config{candidates.rows(count), count, 0, StageStyle::kTensor};
        if (degree == 1) config.style = StageStyle::kData;
        if (degree > 1 && degree < each) config.inner = degree;
        grids.push_back({{{count, ranges, std::vector<StageConfig>(at(stages), config)}}});
      }
    candidates.add_recomputing(std::move(grids));
  }
  candidates.choose(kMostPriced, [&](int candidate) {
    report(request, "megatron: simulating", at(std::min(candidate + 1, kMostPriced)), kMostPriced);
  });
  return candidates.best();
}

}  // namespace medley
