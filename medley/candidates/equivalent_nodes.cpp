#include "medley/candidates/equivalent_nodes.h"

#include "medley/base/error.h"

namespace medley {

Connection connection(const Topology& topology, int from, int to) {
  try {
    const Path path = topology.path(from, to);
    return std::tuple(path.network, path.latency, path.bandwidth.value, path.links.size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

// Returns [from][to] links inside a node, and [node][node] between the first devices of nodes.
std::vector<std::vector<Connection>> links_between(const Topology& topology,
                                                   const std::vector<std::vector<int>>& nodes) {
  std::vector<std::vector<Connection>> links(nodes.size());
  for (size_t a = 0; a < nodes.size(); ++a)
    for (size_t b = 0; b < nodes.size(); ++b) {
      Connection& link = links[a].emplace_back();
      if (a != b)
        link = connection(topology, nodes[a][0], nodes[b][0]);
      else if (nodes[a].size() > 1)
        link = connection(topology, nodes[a][0], nodes[a][1]);
      if (a == b && link) std::get<0>(*link) = 0;  // each node has a network of its own
    }
  return links;
}

}  // namespace

EquivalentNodes::EquivalentNodes(const Cluster& cluster,
                                 const Topology& topology,
                                 const std::vector<int>& devices)
    : nodes_(by_node(cluster, devices)) {
  const std::vector<std::vector<Connection>> links = links_between(topology, nodes_);
  const auto are_equivalent = [&](size_t a, size_t b) {
    if (nodes_[a].size() != nodes_[b].size() || links[a][a] != links[b][b]) return false;
    for (size_t d = 0; d < nodes_[a].size(); ++d)
      if (cluster.kind(nodes_[a][d]) != cluster.kind(nodes_[b][d])) return false;
    if (links[a][b] != links[b][a]) return false;
    for (size_t other = 0; other < nodes_.size(); ++other)
      if (other != a && other != b &&
          (links[a][other] != links[b][other] || links[other][a] != links[other][b]))
        return false;
    return true;
  };
  for (size_t n = 0; n < nodes_.size(); ++n) {
    size_t first = 0;
    while (first < n && (like_[first] != first || !are_equivalent(first, n))) ++first;
    like_.push_back(first);
    for (size_t d = 0; d < nodes_[n].size(); ++d) places_[nodes_[n][d]] = {n, d};
  }
}

std::vector<int> EquivalentNodes::first_equivalent(const std::vector<int>& devices) const {
  std::map<size_t, size_t> stands_for;         // node -> its representative
  std::vector<size_t> next(nodes_.size(), 0);  // [representative] start of its search
  std::vector<int> result;
  for (const int device : devices) {
    const auto [node, place] = places_.at(device);
    const auto [other, is_new] = stands_for.try_emplace(node);
    if (is_new) {
      size_t& from = next[like_[node]];
      while (like_[from] != like_[node]) ++from;
      other->second = from++;
    }
    result.push_back(nodes_[other->second][place]);
  }
  return result;
}

}  // namespace medley
