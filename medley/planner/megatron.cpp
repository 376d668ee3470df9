#include "medley/planner/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "medley/base/at.h"
#include "medley/candidates/candidates.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/tuning.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

constexpr LayerOptions kWholeBlocks{.per_block = 1};

// Returns runs of layers whose lengths differ by at most one.
std::vector<StageRange> even_ranges(int layers, int stages, int devices) {
  std::vector<StageRange> ranges;
  for (int s = 0; s < stages; ++s)
    ranges.push_back({layers * s / stages, layers * (s + 1) / stages, 0, devices});
  return ranges;
}

// Returns tensor-parallel degrees: powers of two within the smallest node, and all.
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

// Returns least ns of the whole model on one device, by flops: [device].
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

// Returns the least time of the micro-batches by flops: one passes all stages, and the busiest
// stage's slowest device does the others.
Nanoseconds least_step(const std::vector<Layer>& layers,
                       const std::vector<StageRange>& stages,
                       const std::vector<double>& alone,
                       int64_t microbatches) {
  const auto flops = [&](size_t begin, size_t end) {
    double sum = 0;
    for (size_t l = begin; l < end; ++l) sum += layers[l].flops + layers[l].backward_flops;
    return sum;
  };
  const double all = flops(0, layers.size());
  double most = 0, sum = 0;
  auto device = alone.begin();
  for (const StageRange& stage : stages) {
    const double slowest = *std::max_element(device, device + stage.devices);
    const double part = flops(at(stage.begin), at(stage.end)) / all;
    most = std::max(most, slowest * part / stage.devices);
    sum += slowest * part / stage.devices;
    device += stage.devices;
  }
  const double others = 1 - 1 / static_cast<double>(microbatches);
  return {static_cast<int64_t>((sum * (1 - others) + most * others) * kOfBound)};
}

// Least memory of a stage per parameter: the parameter, its gradient, and the optimizer state.
// Gives the largest shortage of a device over all stages of a grid with a tensor-parallel degree;
// negative: none.
class LeastMemory {
 public:
  LeastMemory(const Request& request, const std::vector<Layer>& layers)
      : request_(request), layers_(layers) {
    const Graph& graph = request.cache.analysis->graph;
    const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()), 1);
    const auto bytes = [&](ValueId value) {
      return static_cast<double>(num_bytes(type_of(graph, value), symbols));
    };
    std::map<std::string, double> states;
    for (const Input& input : graph.inputs)
      if (input.kind == InputKind::kState) states[input.role.of] += bytes(input.value);
    const std::map<std::string, ValueId> gradients = gradients_of(graph);
    for (const Input& input : graph.inputs)
      if (input.kind == InputKind::kParameter)
        bytes_[input.value] =
            bytes(input.value) * (gradients.contains(input.name) ? 2 : 1) + states[input.name];
  }

  double lacking(const std::vector<StageRange>& stages,
                 const std::vector<int>& devices,
                 int degree) const {
    double most = -1;
    auto device = devices.begin();
    for (const StageRange& stage : stages) {
      std::set<ValueId> held;
      for (int l = stage.begin; l < stage.end; ++l)
        held.insert(layers_[at(l)].parameters.begin(), layers_[at(l)].parameters.end());
      double sum = 0;
      for (const ValueId parameter : held) sum += bytes_.at(parameter);
      for (int i = 0; i < stage.devices; ++i, ++device)
        most = std::max(most, sum / degree - request_.cluster.kind(*device).memory_bytes);
    }
    return most;
  }

 private:
  const Request& request_;
  const std::vector<Layer>& layers_;
  std::map<ValueId, double> bytes_;  // per parameter
};

}  // namespace

Outcome megatron(const Request& request) {
  if (std::optional<Infeasible> no = refuse_cross_sample(request)) return std::move(*no);
  const std::vector<int> devices = devices_of(request);
  const int all = static_cast<int>(devices.size());
  const std::vector<DevicePool> pools{{devices, all, false}};
  const std::shared_ptr<StageSynthesis> stages_found = stages_of(request, kWholeBlocks);
  StageSynthesis& synthesis = *stages_found;
  CandidateSet candidates(request, pools, synthesis);
  candidates.trials().keep_backward_whole();  // as in frameworks that run such grids
  const int layers = static_cast<int>(synthesis.layers().layers.size());
  const std::vector<double> alone =
      request.faster_than ? times_alone(request, devices) : std::vector<double>{};
  const LeastMemory memory(request, synthesis.layers().layers);
  std::optional<double> least_lacking;  // over grids that do not fit
  for (int stages = 1; stages <= std::min(all, layers); ++stages) {
    if (all % stages != 0) continue;
    report(
        request, fmt::format("megatron: {} stages", stages), at(stages), at(std::min(all, layers)));
    const int each = all / stages;
    const std::vector<StageRange> ranges = even_ranges(layers, stages, each);
    std::vector<int64_t> counts = microbatch_counts(request);
    if (request.faster_than)
      std::erase_if(counts, [&](int64_t count) {
        return least_step(synthesis.layers().layers, ranges, alone, count) >= *request.faster_than;
      });
    if (counts.empty()) continue;
    std::vector<int> degrees = tensor_degrees(request, devices, each);
    std::erase_if(degrees, [&](int degree) {
      const double lacking = memory.lacking(ranges, devices, degree);
      if (lacking > 0) least_lacking = std::min(least_lacking.value_or(lacking), lacking);
      return lacking > 0;
    });
    const auto grid = [&](int64_t count, int degree) -> PlanCandidate {
      StageConfig config{candidates.places().rows(count), count, 0, StageStyle::kTensor};
      if (degree == 1) config.style = StageStyle::kData;
      if (degree > 1 && degree < each) config.inner = degree;
      return {{{count, ranges, std::vector<StageConfig>(at(stages), config)}}};
    };
    std::vector<PlanCandidate> grids;
    for (const int64_t count : counts) {
      std::vector<PlanCandidate> some;
      for (const int degree : degrees) some.push_back(grid(count, degree));
      if (request.faster_than) {
        candidates.trials().drop_slower(
            some,
            Nanoseconds{
                static_cast<int64_t>(static_cast<double>(request.faster_than->value) / kOfBound)});
        // A stage's time for all micro-batches grows with their number.
        std::erase_if(degrees, [&](int degree) {
          return std::ranges::find(some, grid(count, degree)) == some.end();
        });
      }
      std::ranges::move(some, std::back_inserter(grids));
    }
    candidates.add_recomputing(std::move(grids));
  }
  if (candidates.timed().empty() && least_lacking)
    return Infeasible{
        fmt::format("no grid of equal stages has memory for its parameters, their gradients and "
                    "optimizer state: "
                    "a device lacks {} of it at least",
                    to_string(Bytes{static_cast<int64_t>(*least_lacking)}))};
  candidates.choose(kMostSimulated, [&](int candidate) {
    report(request,
           "megatron: simulating",
           at(std::min(candidate + 1, kMostSimulated)),
           kMostSimulated);
  });
  return candidates.best();
}

}  // namespace medley
