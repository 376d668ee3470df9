#include "medley/elastic/state_replicas.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/elastic/shards.h"
#include "medley/graph/dtype.h"
#include "medley/memory/memory.h"
#include "medley/network/topology.h"

namespace medley {
namespace {

// A box that one failure would destroy.
struct Lone {
  int value = 0;
  size_t cell = 0;
  int64_t bytes = 0;
  std::vector<Shard> holders;
  int from = -1;  // index into holders
  int to = -1;    // -1: no device has room
};

bool share_a_domain(const std::vector<Shard>& holders, const std::vector<int>& domains) {
  return std::ranges::all_of(holders, [&](const Shard& shard) {
    return domains[at(shard.device)] == domains[at(holders[0].device)];
  });
}

class Chooser {
 public:
  Chooser(const std::set<int>& devices, const Neighbourhood& places)
      : devices_(devices), places_(places) {}

  // Returns whether no single failure destroys it any more.
  bool choose(Lone& lone) {
    for (const std::vector<int>& domains : places_.domains)
      if (!share_a_domain(lone.holders, domains) || choose(lone, domains)) return true;
    return false;
  }

 private:
  bool choose(Lone& lone, const std::vector<int>& domains) {
    double best = std::numeric_limits<double>::infinity();
    for (size_t h = 0; h < lone.holders.size(); ++h)
      for (int to : devices_) {
        const int from = lone.holders[h].device;
        const double costs = domains[at(to)] == domains[at(from)] ? best : cost(lone, from, to);
        if (costs >= best) continue;
        best = costs;
        lone.from = static_cast<int>(h);
        lone.to = to;
      }
    if (lone.to < 0) return false;
    const int from = lone.holders[at(lone.from)].device;
    const double takes = static_cast<double>(lone.bytes) * places_.byte_time(from, lone.to);
    sends_[from] += takes;
    receives_[lone.to] += takes;
    kept_[lone.to] += lone.bytes;
    return true;
  }

  // Returns the arrival time, raised for full devices; infinite without room.
  double cost(const Lone& lone, int from, int to) {
    const double kept = static_cast<double>(kept_[to] + lone.bytes);
    const double room = static_cast<double>(places_.room[at(to)]);
    if (kept >= room) return std::numeric_limits<double>::infinity();
    const double takes = static_cast<double>(lone.bytes) * places_.byte_time(from, to);
    return (std::max(sends_[from], receives_[to]) + takes) / (1 - kept / room);
  }

  const std::set<int>& devices_;
  const Neighbourhood& places_;
  std::map<int, double> sends_, receives_;  // by device
  std::map<int, int64_t> kept_;
};

// A value and its division among holders.
struct Divided {
  std::vector<Laid> laid;
  Cells cells;
};

void find_lone(int v,
               int64_t bytes_per_element,
               const Divided& value,
               const Neighbourhood& places,
               std::vector<Lone>& lone) {
  for (size_t c = 0; c < value.cells.cells.size(); ++c) {
    const Cell& cell = value.cells.cells[c];
    std::vector<Shard> holders = shards_of(value.laid, cell);
    if (!holders.empty() && share_a_domain(holders, places.domains.front()))
      lone.push_back({v, c, volume(cell.box) * bytes_per_element, std::move(holders)});
  }
}

std::set<int> devices_of(const Program& program) {
  std::set<int> devices;
  for (const LoweredStage& stage : program.stages)
    devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

std::vector<std::vector<int>> domains_of(const std::set<int>& devices, const Topology& topology) {
  const Cluster& cluster = topology.cluster();
  const size_t num = cluster.devices.size();
  std::vector<int> nodes(num), at_risk(num), alone(num);
  std::iota(alone.begin(), alone.end(), 0);
  for (size_t d = 0; d < num; ++d) {
    const NodePool& pool = cluster.pools[at(cluster.devices[d].pool)];
    // The first pool of its name: some of its devices may be slowed().
    const auto first = std::ranges::find(cluster.pools, pool.name, &NodePool::name);
    nodes[d] = topology.node(static_cast<int>(d));
    at_risk[d] = pool.preemptible ? -1 - static_cast<int>(first - cluster.pools.begin()) : nodes[d];
  }
  std::vector<std::vector<int>> domains;
  for (const std::vector<int>& each : {at_risk, nodes}) {
    std::set<int> found;
    for (int device : devices) found.insert(each[at(device)]);
    if (found.size() > 1 && (domains.empty() || domains.back() != each)) domains.push_back(each);
  }
  if (domains.empty()) domains.push_back(std::move(alone));
  return domains;
}

}  // namespace

Neighbourhood neighbourhood_of(const Program& program, const Cluster& cluster) {
  const auto topology = std::make_shared<Topology>(cluster);
  Neighbourhood places;
  places.domains = domains_of(devices_of(program), *topology);
  places.room.assign(cluster.devices.size(), 0);
  for (const LoweredStage& stage : program.stages) {
    const std::vector<MemoryUse> uses = memory_uses(stage);
    for (size_t d = 0; d < stage.devices.size(); ++d) {
      const auto all = static_cast<int64_t>(cluster.kind(stage.devices[d]).memory_bytes);
      places.room[at(stage.devices[d])] = all - uses[d].peak - uses[d].persistent;
    }
  }
  places.byte_time = [topology](int from, int to) {
    return 1 / topology->path(from, to).bandwidth.value;
  };
  return places;
}

StateReplicas state_replicas(const Program& program, const Neighbourhood& places) {
  MEDLEY_CHECK(!places.domains.empty());
  StateReplicas result{held_values(program), {}, 0};
  std::vector<Divided> divided(result.values.size());
  std::vector<Lone> lone;
  for (size_t v = 0; v < divided.size(); ++v) {
    const HeldValue& value = result.values[v];
    if (std::ranges::count(value.shape, 0) > 0) continue;
    divided[v].laid = laid_out(value, program);
    divided[v].cells = cells_of(layouts_of(divided[v].laid));
    find_lone(static_cast<int>(v), bytes_per_element(value.dtype), divided[v], places, lone);
  }
  std::vector<Lone*> order;
  for (Lone& each : lone) order.push_back(&each);
  std::ranges::stable_sort(order, std::greater<>(), &Lone::bytes);
  const std::set<int> devices = devices_of(program);
  const bool fit =
      std::ranges::all_of(devices, [&](int device) { return places.room[at(device)] >= 0; });
  Chooser chooser(devices, places);
  for (Lone* each : order)
    if (!fit || !chooser.choose(*each)) result.without += each->bytes;
  for (const Lone& each : lone) {
    if (each.to < 0) continue;
    const Cells& cells = divided[at(each.value)].cells;
    const Shard& from = each.holders[at(each.from)];
    const int64_t bytes = bytes_per_element(result.values[at(each.value)].dtype);
    result.replicas.push_back({each.value,
                               cells.factors,
                               cells.cells[each.cell].box,
                               from.device,
                               each.to,
                               runs_in(from, cells, cells.cells[each.cell], bytes)});
  }
  return result;
}

}  // namespace medley
