#include "medley/synthesis/work_bound.h"

#include <map>

#include "medley/synthesis/data_parallel.h"

namespace medley {

Nanoseconds work_bound(const Request& request) {
  const Graph& graph = request.analysis->prepared->graph;
  std::map<std::string, std::pair<const DeviceKind*, int>> kinds;  // and how many there are
  for (int device : devices_of(request)) {
    const DeviceKind& kind = request.cluster.kind(device);
    auto& [which, count] = kinds[kind.name];
    which = &kind;
    ++count;
  }
  const std::vector<int64_t> symbols(std::max<size_t>(1, graph.symbols.size()),
                                     request.global_batch);
  double nanoseconds = 0;
  for (const Op& op : graph.ops) {
    double rate = 0;  // of the op per nanosecond, all devices together
    for (const auto& [name, devices] : kinds) {
      const Nanoseconds time = request.costs->least(*devices.first, graph, op, symbols);
      if (time <= Nanoseconds{}) {
        rate = 0;
        break;
      }
      rate += devices.second / static_cast<double>(time.value);
    }
    if (rate > 0) nanoseconds += 1 / rate;
  }
  return {static_cast<int64_t>(nanoseconds)};
}

}  // namespace medley
