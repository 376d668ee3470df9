#pragma once

// Finds nodes that differ only in their names. A stage takes the same time on corresponding devices
// of such nodes, so it is synthesised once.
//
//   nodes    v0 a0 v1 a1     equal   v0 v1, a0 a1
//   devices  of a1, v1       as those of a0, v0

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/network/topology.h"

namespace medley {

// Returns the properties of a path that distinguish nodes; nullopt without a path.
using Connection = std::optional<std::tuple<int, Nanoseconds, double, size_t>>;
Connection connection(const Topology& topology, int from, int to);

class EquivalentNodes {
 public:
  // Compares the nodes of `devices`.
  EquivalentNodes(const Cluster& cluster,
                  const Topology& topology,
                  const std::vector<int>& devices);

  // Maps each device to its counterpart in the first identical node. Requires: some of the devices.
  std::vector<int> first_equivalent(const std::vector<int>& devices) const;

 private:
  std::vector<std::vector<int>> nodes_;              // devices
  std::vector<size_t> like_;                         // [node] the first identical one
  std::map<int, std::pair<size_t, size_t>> places_;  // [device] its node and index in it
};

}  // namespace medley
