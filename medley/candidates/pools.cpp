#include "medley/candidates/pools.h"

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/candidates/equivalent_nodes.h"
#include "medley/synthesis/tuning.h"
#include "medley/synthesis/work_bound.h"

namespace medley {
namespace {

// Returns connections between pools, and [p][p] between the first two nodes of one.
std::vector<std::vector<Connection>> connections_of(const std::vector<DevicePool>& pools,
                                                    const Topology& topology) {
  std::vector<std::vector<Connection>> all(pools.size());
  for (size_t a = 0; a < pools.size(); ++a)
    for (size_t b = 0; b < pools.size(); ++b) {
      const bool has_nodes = pools[b].devices.size() > at(pools[b].per_node);
      const size_t second = a == b && has_nodes ? at(pools[b].per_node) : 0;
      all[a].push_back(a == b && !has_nodes
                           ? Connection()
                           : connection(topology, pools[a].devices[0], pools[b].devices[second]));
    }
  return all;
}

// Returns the connection inside a node.
Connection fabric_of(const DevicePool& pool, const Topology& topology) {
  if (pool.per_node == 1) return std::nullopt;
  const Path path = topology.path(pool.devices[0], pool.devices[1]);
  return std::tuple(0, path.latency, path.bandwidth.value, path.links.size());
}

class PoolJoiner {
 public:
  PoolJoiner(const Request& request, const std::vector<DevicePool>& pools)
      : request_(request),
        pools_(pools),
        connections_(connections_of(pools, request.costs->topology())) {
    for (const DevicePool& pool : pools)
      fabrics_.push_back(fabric_of(pool, request.costs->topology()));
  }

  // Joins pools that are equally connected, or all connected pools of one type.
  std::vector<DevicePool> joined(bool equally) const {
    std::vector<std::vector<size_t>> groups;
    for (size_t p = 0; p < pools_.size(); ++p) {
      const auto group = std::ranges::find_if(groups, [&](const std::vector<size_t>& members) {
        return equally ? are_equal(members[0], p)
                       : std::ranges::all_of(members, [&](size_t member) {
                           return are_of_one_kind(member, p) && connections_[member][p];
                         });
      });
      if (group == groups.end())
        groups.push_back({p});
      else
        group->push_back(p);
    }
    std::vector<DevicePool> result;
    for (const std::vector<size_t>& members : groups) {
      DevicePool& pool = result.emplace_back(pools_[members[0]]);
      for (const size_t member : members) {
        pool.uniform &= pools_[member].uniform && are_equal(members[0], member);
        if (member == members[0]) continue;
        pool.devices.insert(
            pool.devices.end(), pools_[member].devices.begin(), pools_[member].devices.end());
      }
    }
    return result;
  }

 private:
  bool are_of_one_kind(size_t a, size_t b) const {
    const auto kind = [&](size_t p) -> const DeviceKind& {
      return request_.cluster.kind(pools_[p].devices[0]);
    };
    return pools_[a].per_node == pools_[b].per_node && kind(a) == kind(b);
  }

  // Returns whether nodes of both pools differ only in name.
  bool are_equal(size_t a, size_t b) const {
    if (a == b) return true;
    if (!are_of_one_kind(a, b) || fabrics_[a] != fabrics_[b] || !connections_[a][b]) return false;
    for (const size_t own : {a, b}) {
      const bool has_nodes = pools_[own].devices.size() > at(pools_[own].per_node);
      if (has_nodes && connections_[own][own] != connections_[a][b]) return false;
    }
    for (size_t other = 0; other < pools_.size(); ++other)
      if (other != a && other != b && connections_[a][other] != connections_[b][other])
        return false;
    return true;
  }

  const Request& request_;
  const std::vector<DevicePool>& pools_;
  std::vector<std::vector<Connection>> connections_;  // [from][to]
  std::vector<Connection> fabrics_;                   // [pool]
};

std::vector<DevicePool> pools_of_cluster(const Request& request) {
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

// Returns whether a mesh straddles two nodes if stages are laid out in sequence.
bool straddles(const std::vector<DevicePool>& pools, const std::vector<StageRange>& stages) {
  std::vector<int> used(pools.size(), 0);
  for (const StageRange& stage : stages) {
    const auto pool = at(stage.pool);
    const int node = pools[pool].per_node, place = used[pool] % node;
    if (place > 0 && place + stage.devices > node) return true;
    if (!pools[pool].speeds.empty() && place % stage.devices != 0) return true;
    used[pool] += stage.devices;
  }
  return false;
}

}  // namespace

std::vector<DevicePool> pools_of(const Request& request) {
  std::vector<DevicePool> pools = pools_of_cluster(request);
  for (const bool equally : {true, false})
    if (pools.size() > kManyPools) pools = PoolJoiner(request, pools).joined(equally);
  return pools;
}

std::vector<DevicePool> fastest_pools(const Request& request) {
  std::vector<DevicePool> pools = pools_of(request);
  if (pools.size() <= kManyPools) return pools;
  std::vector<std::pair<Nanoseconds, size_t>> times;
  for (size_t p = 0; p < pools.size(); ++p) {
    Request alone = request;
    alone.devices = names_of(request.cluster, pools[p].devices);
    times.emplace_back(work_bound(alone), p);
  }
  std::ranges::sort(times);
  times.resize(kManyPools);
  std::vector<DevicePool> fastest;
  std::ranges::sort(times, {}, &std::pair<Nanoseconds, size_t>::second);
  for (const auto& [time, p] : times) fastest.push_back(std::move(pools[p]));
  return fastest;
}

DevicePool mixed(const DevicePool& a, const DevicePool& b, const std::map<int, double>& speeds) {
  const auto all_a = static_cast<int>(a.devices.size()), all_b = static_cast<int>(b.devices.size());
  // Returns whether a part of a pool is a mesh: units within a node, or whole nodes.
  const auto is_mesh = [](int devices, const DevicePool& pool) {
    return devices % pool.unit == 0 &&
           (pool.per_node % devices == 0 || devices % pool.per_node == 0);
  };
  int units = std::gcd(all_a, all_b);
  while (all_a % units != 0 || all_b % units != 0 || !is_mesh(all_a / units, a) ||
         !is_mesh(all_b / units, b))
    --units;
  const int of_a = all_a / units, of_b = all_b / units;
  DevicePool pool;
  pool.unit = pool.per_node = of_a + of_b;
  while (pool.per_node / pool.unit * of_a % a.per_node != 0 ||
         pool.per_node / pool.unit * of_b % b.per_node != 0)
    pool.per_node += pool.unit;
  pool.uniform = a.uniform && b.uniform;
  for (int unit = 0; unit < units; ++unit) {
    pool.devices.insert(
        pool.devices.end(), a.devices.begin() + unit * of_a, a.devices.begin() + (unit + 1) * of_a);
    pool.devices.insert(
        pool.devices.end(), b.devices.begin() + unit * of_b, b.devices.begin() + (unit + 1) * of_b);
  }
  for (const int device : pool.devices) pool.speeds.emplace(device, speeds.at(device));
  return pool;
}

std::vector<int> mesh_sizes(const DevicePool& pool) {
  const auto all = static_cast<int>(pool.devices.size());
  std::vector<int> sizes;
  for (int size = pool.unit; size < pool.per_node && pool.per_node % size == 0; size *= 2)
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
    if (!pools[pool].speeds.empty()) std::ranges::sort(result[s]);  // node after node
  }
  return result;
}

}  // namespace medley
