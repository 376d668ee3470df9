#include "medley/planner/pools.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "medley/base/error.h"
#include "medley/planner/data_parallel.h"

namespace medley {

std::vector<DevicePool> pools_of(const Request& request) {
  std::vector<int> devices = devices_of(request);
  std::sort(devices.begin(), devices.end());
  std::map<std::pair<int, size_t>, DevicePool> pools;  // (pool, devices of a node)
  for (const std::vector<int>& on_node : by_node(request.cluster, devices)) {
    const Device& first = request.cluster.devices[static_cast<size_t>(on_node[0])];
    DevicePool& pool = pools[{first.pool, on_node.size()}];
    pool.per_node = static_cast<int>(on_node.size());
    pool.devices.insert(pool.devices.end(), on_node.begin(), on_node.end());
  }
  std::vector<DevicePool> result;
  for (auto& [key, pool] : pools) result.push_back(std::move(pool));
  return result;
}

std::vector<int> mesh_sizes(const DevicePool& pool) {
  const auto all = static_cast<int>(pool.devices.size());
  std::vector<int> sizes;
  for (int size = 1; size < pool.per_node && pool.per_node % size == 0; size *= 2)
    sizes.push_back(size);
  for (int size = pool.per_node; size <= all; size *= 2) sizes.push_back(size);
  if (sizes.back() != all) sizes.push_back(all);
  return sizes;
}

std::optional<LinkCurve> link_of(const Topology& topology, int from, int to) {
  if (from == to) return LinkCurve{{{Bytes{1}, Nanoseconds{1}}}, {}};
  try {
    const Path path = topology.path(from, to);
    return constant_bandwidth(path.bandwidth, path.latency);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::vector<std::optional<LinkCurve>>> links_of(const std::vector<DevicePool>& pools,
                                                            const Topology& topology) {
  std::vector<std::vector<std::optional<LinkCurve>>> links(pools.size());
  for (size_t a = 0; a < pools.size(); ++a)
    for (const DevicePool& to : pools)
      links[a].push_back(link_of(topology, pools[a].devices.front(), to.devices.back()));
  return links;
}

std::vector<std::vector<int>> lay_out(const std::vector<DevicePool>& pools,
                                      const std::vector<StageRange>& stages) {
  std::vector<size_t> order(stages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return stages[a].devices > stages[b].devices;
  });
  std::vector<size_t> used(pools.size(), 0);
  std::vector<std::vector<int>> result(stages.size());
  for (size_t s : order) {
    const auto pool = static_cast<size_t>(stages[s].pool);
    const auto first = pools[pool].devices.begin() + static_cast<std::ptrdiff_t>(used[pool]);
    used[pool] += static_cast<size_t>(stages[s].devices);
    MEDLEY_CHECK(used[pool] <= pools[pool].devices.size());
    result[s] = {first, first + stages[s].devices};
  }
  return result;
}

}  // namespace medley
