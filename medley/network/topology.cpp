#include "medley/network/topology.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"

namespace medley {
namespace {

bool names(const Network& network, const std::string& pool) {
  return std::find(network.connects.begin(), network.connects.end(), pool) !=
         network.connects.end();
}

bool serves(const Network& network, const std::string& pool) {
  return (network.inside_node && network.connects.empty()) || names(network, pool);
}

// Returns the device's pool: the first of its name, if slowed() split it.
int place(const Cluster& cluster, int device) {
  const std::string& name = cluster.pools[at(cluster.devices[at(device)].pool)].name;
  return static_cast<int>(std::ranges::find(cluster.pools, name, &NodePool::name) -
                          cluster.pools.begin());
}

double narrowest(const Network& network, bool between_pools) {
  return network.trunk && between_pools ? std::min(*network.trunk, network.bandwidth)
                                        : network.bandwidth;
}

}  // namespace

Topology::Topology(const Cluster& cluster, LibraryAlgorithms library)
    : cluster_(cluster), library_(std::move(library)) {
  const auto& devices = cluster_.devices;
  int node = -1;
  for (const Device& device : devices) {
    node += device.index == 0;
    nodes_.push_back(node);
  }
  for (const Network& network : cluster_.networks) {
    const int index = static_cast<int>(ports_.size());
    std::vector<Port> ports(devices.size());
    for (size_t d = 0; d < devices.size(); ++d) {
      if (!serves(network, cluster_.pools[at(devices[d].pool)].name)) continue;
      if (!network.inside_node && devices[d].index > 0) {
        ports[d] = ports[d - 1];
        continue;
      }
      const std::string& name = devices[d].name;
      const std::string owner = network.inside_node ? name : name.substr(0, name.rfind('/'));
      ports[d].out =
          add_link(fmt::format("{}:{}:out", network.name, owner), network.bandwidth, index);
      ports[d].in =
          add_link(fmt::format("{}:{}:in", network.name, owner), network.bandwidth, index);
    }
    ports_.push_back(std::move(ports));
    Port trunk;
    if (network.trunk) {
      trunk.out = add_link(network.name + ":trunk:up", *network.trunk, index);
      trunk.in = add_link(network.name + ":trunk:down", *network.trunk, index);
    }
    trunks_.push_back(trunk);
    latencies_.push_back(to_nanoseconds({network.latency}));
  }
  // Devices of a pool have equal ports, so the pools decide.
  const size_t pools = cluster_.pools.size();
  chosen_.assign(pools * pools * 2, -1);
  std::vector<int> first(pools, -1), neighbour(pools, -1), elsewhere(pools, -1);
  for (int d = 0; d < num_devices(); ++d) {
    const auto pool = at(devices[at(d)].pool);
    if (first[pool] < 0)
      first[pool] = d;
    else if (this->node(d) == this->node(first[pool]))
      neighbour[pool] = d;
    else
      elsewhere[pool] = d;
  }
  const auto choose = [&](int from, int to) {
    if (from < 0 || to < 0) return;
    const size_t pair = at(devices[at(from)].pool) * pools + at(devices[at(to)].pool);
    int& chosen = chosen_[2 * pair + (this->node(from) == this->node(to) ? 1 : 0)];
    if (chosen < 0) chosen = choose_network(from, to);
  };
  for (size_t a = 0; a < pools; ++a)
    for (size_t b = 0; b < pools; ++b) {
      if (a == b) choose(first[a], neighbour[a]);
      choose(first[a], a == b ? elsewhere[a] : first[b]);
      if (a != b) choose(first[a], elsewhere[b]);
      if (a != b) choose(elsewhere[a], first[b]);
    }
  // Devices of one node in several pools: slowed() ones and the others.
  for (int d = 1; d < num_devices(); ++d)
    for (int other = d - 1; other >= 0 && this->node(other) == this->node(d); --other)
      if (devices[at(other)].pool != devices[at(d)].pool) {
        choose(d, other);
        choose(other, d);
      }
}

int Topology::add_link(std::string name, double bandwidth, int network) {
  links_.push_back({std::move(name), {bandwidth}, network});
  return static_cast<int>(links_.size()) - 1;
}

int Topology::choose_network(int from, int to) const {
  const bool same_node = node(from) == node(to);
  const bool between_pools = place(cluster_, from) != place(cluster_, to);
  for (const bool inside : {true, false}) {
    if (inside && !same_node) continue;
    int best = -1;
    for (size_t n = 0; n < cluster_.networks.size(); ++n) {
      const Network& network = cluster_.networks[n];
      const auto& ports = ports_[n];
      if (network.inside_node != inside || ports[at(from)].out < 0 || ports[at(to)].in < 0)
        continue;
      if (best >= 0) {
        const Network& other = cluster_.networks[at(best)];
        const double mine = narrowest(network, between_pools),
                     theirs = narrowest(other, between_pools);
        if (mine < theirs || (mine == theirs && network.latency >= other.latency)) continue;
      }
      best = static_cast<int>(n);
    }
    if (best >= 0) return best;
  }
  return -1;
}

int Topology::network(int from, int to) const {
  const Device& a = cluster_.devices[at(from)];
  const Device& b = cluster_.devices[at(to)];
  const bool same_node = node(from) == node(to);
  const size_t pair = at(a.pool) * cluster_.pools.size() + at(b.pool);
  const int chosen = chosen_[2 * pair + (same_node ? 1 : 0)];
  if (chosen >= 0) return chosen;
  const std::string &first = cluster_.pools[at(a.pool)].name,
                    &second = cluster_.pools[at(b.pool)].name;
  const std::string what = same_node ? fmt::format("the devices inside a node of pool {}", first)
                           : first == second ? fmt::format("the nodes of pool {}", first)
                                             : fmt::format("the pools {} and {}", first, second);
  throw Error(Blame::kCaller, fmt::format("cluster: no network connects {}", what));
}

Route Topology::route(int from, int to) const {
  const auto n = at(network(from, to));
  // Comparing names is too slow for millions of queries.
  const bool has_trunk = trunks_[n].out >= 0;
  const int a = has_trunk ? place(cluster_, from) : 0, b = has_trunk ? place(cluster_, to) : 0;
  Route route;
  route.latency = latencies_[n];
  route.network = static_cast<int>(n);
  const auto add = [&](int link) { route.links[at(route.num_links++)] = link; };
  add(ports_[n][at(from)].out);
  if (a != b) add(a < b ? trunks_[n].out : trunks_[n].in);
  add(ports_[n][at(to)].in);
  return route;
}

Path Topology::path(int from, int to) const {
  MEDLEY_CHECK(from >= 0 && from < num_devices() && to >= 0 && to < num_devices());
  if (from == to) return {};
  const Route along = route(from, to);
  Path path;
  path.network = along.network;
  path.links.assign(along.span().begin(), along.span().end());
  path.latency = along.latency;
  path.bandwidth = {
      narrowest(cluster_.networks[at(path.network)], place(cluster_, from) != place(cluster_, to))};
  return path;
}

}  // namespace medley
