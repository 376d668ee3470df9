#pragma once

// Which nodes nobody can tell apart but for their names: a stage takes as long on the devices of
// one as on those of another, so that it is synthesised once.
//
//   nodes    v0 a0 v1 a1     alike   v0 v1, a0 a1
//   devices  of a1, v1       as those of a0, v0

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "medley/cluster/cluster.h"
#include "medley/network/topology.h"

namespace medley {

// Of the path between two devices what tells nodes apart; nothing: there is none.
using Connection = std::optional<std::tuple<int, Nanoseconds, double, size_t>>;
Connection connection(const Topology& topology, int from, int to);

class AlikeNodes {
 public:
  // Of the nodes on which these devices are.
  AlikeNodes(const Cluster& cluster, const Topology& topology, const std::vector<int>& devices);

  // Devices of the first nodes that are alike, one for one. Requires: some of the devices.
  std::vector<int> first_alike(const std::vector<int>& devices) const;

 private:
  std::vector<std::vector<int>> nodes_;              // devices
  std::vector<size_t> like_;                         // [node] the first one that is alike
  std::map<int, std::pair<size_t, size_t>> places_;  // of a device: node, and place in it
};

}  // namespace medley
