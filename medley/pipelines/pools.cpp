#include "medley/pipelines/pools.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {

std::vector<DevicePool> pools_of(const Request& request) {
  std::vector<int> devices = devices_of(request);
  std::sort(devices.begin(), devices.end());
  std::map<std::pair<int, size_t>, DevicePool> pools;  // (pool, devices of a node)
  for (const std::vector<int>& on_node : by_node(request.cluster, devices)) {
    const Device& first = request.cluster.devices[at(on_node[0])];
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

std::vector<std::array<DevicePool, 2>> cut_in_two(const DevicePool& pool, int number) {
  const int devices = static_cast<int>(pool.devices.size());
  const int unit = devices > pool.per_node ? pool.per_node : 1;
  const int units = devices / unit;
  std::vector<int> first{units / 2};
  if (units % 4 == 0) first.push_back(units / 4 * 3);
  std::vector<std::array<DevicePool, 2>> ways;
  for (const int some : first) {
    const auto middle = pool.devices.begin() + some * unit;
    std::array<DevicePool, 2> sub_pools{pool, pool};
    sub_pools[0].devices = {pool.devices.begin(), middle};
    sub_pools[1].devices = {middle, pool.devices.end()};
    sub_pools[0].sub_pool_of = sub_pools[1].sub_pool_of = number;
    if (some > 0) ways.push_back(std::move(sub_pools));
  }
  return ways;
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

namespace {

// Whether a mesh would lie on parts of two nodes if each came behind the one before.
bool straddles(const std::vector<DevicePool>& pools, const std::vector<StageRange>& stages) {
  std::vector<int> used(pools.size(), 0);
  for (const StageRange& stage : stages) {
    const auto pool = at(stage.pool);
    const int node = pools[pool].per_node, place = used[pool] % node;
    if (place > 0 && place + stage.devices > node) return true;
    used[pool] += stage.devices;
  }
  return false;
}

}  // namespace

std::vector<std::vector<int>> lay_out(const std::vector<DevicePool>& pools,
                                      const std::vector<StageRange>& stages) {
  std::vector<size_t> order(stages.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (straddles(pools, stages))
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return stages[a].devices > stages[b].devices;
    });
  std::vector<size_t> used(pools.size(), 0);
  std::vector<std::vector<int>> result(stages.size());
  for (size_t s : order) {
    const auto pool = at(stages[s].pool);
    const auto first = pools[pool].devices.begin() + static_cast<std::ptrdiff_t>(used[pool]);
    used[pool] += at(stages[s].devices);
    MEDLEY_CHECK(used[pool] <= pools[pool].devices.size());
    result[s] = {first, first + stages[s].devices};
  }
  return result;
}

}  // namespace medley
