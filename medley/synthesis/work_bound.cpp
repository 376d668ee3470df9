#include "medley/synthesis/work_bound.h"

#include <algorithm>

#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

std::map<std::string, int> counts_of_kinds(const Request& request) {
  std::map<std::string, int> counts;
  for (int device : devices_of(request)) ++counts[request.cluster.kind(device).name];
  return counts;
}

}  // namespace

LeastWork::LeastWork(const Request& request) {
  const Graph& graph = request.cache.analysis->prepared->graph;
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()),
                                     request.global_batch);
  for (int device : devices_of(request)) {
    const DeviceKind& kind = request.cluster.kind(device);
    const auto [times, is_new] = times_.try_emplace(kind.name);
    for (const Op& op : graph.ops)
      if (is_new)
        times->second.push_back(
            static_cast<double>(request.costs->least(kind, graph, op, symbols).value));
  }
}

Nanoseconds LeastWork::bound(const std::map<std::string, int>& devices) const {
  std::vector<std::pair<const std::vector<double>*, double>> kinds;
  for (const auto& [name, count] : devices)
    if (count > 0) kinds.emplace_back(&times_.at(name), count);
  double nanoseconds = 0;
  const size_t num_ops = kinds.empty() ? 0 : kinds[0].first->size();
  for (size_t op = 0; op < num_ops; ++op) {
    double rate = 0;  // parts of the op per ns, over all devices
    for (const auto& [times, count] : kinds) {
      if ((*times)[op] <= 0) {
        rate = 0;
        break;
      }
      rate += count / (*times)[op];
    }
    if (rate > 0) nanoseconds += 1 / rate;
  }
  return {static_cast<int64_t>(nanoseconds)};
}

Nanoseconds work_bound(const Request& request) {
  return LeastWork(request).bound(counts_of_kinds(request));
}

}  // namespace medley
