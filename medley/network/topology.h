#pragma once

// The links of a cluster and the path between any two devices. Every link has one direction.
//
//   same node:   device a --out--> [fabric] --in--> device b
//                (an `inside: node` network)
//   other node:  node a --out--> [switch, trunk] --in--> node b
//                (a `connects` network; all devices of a node share its port)
//
// Knows nothing of time.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/communication_kind.h"
#include "medley/base/units.h"
#include "medley/cluster/cluster.h"

namespace medley {

struct Link {
  std::string name;  // "lan:fast/0:out", "lan:trunk:up", "nvlink:fast/0/1:in"
  BytesPerSecond bandwidth;
  int network = -1;  // index into Cluster::networks
  bool operator==(const Link&) const = default;
};

struct Path {
  std::vector<int> links;  // indices into Topology::links(), empty within a device
  Nanoseconds latency;
  BytesPerSecond bandwidth;  // narrowest link
  int network = -1;          // index into Cluster::networks
  bool operator==(const Path&) const = default;
};

// A path without bandwidth, stored in place for millions of queries.
struct Route {
  std::array<int, 3> links;
  int num_links = 0;
  Nanoseconds latency;
  int network = -1;  // index into Cluster::networks; sets the latency
  std::span<const int> span() const { return {links.data(), at(num_links)}; }
};

struct Algorithm;
// Algorithm that a library runs for each type of collective, at all sizes.
using LibraryAlgorithms = std::map<CommunicationKind, const Algorithm*>;

class Topology {
 public:
  // Collectives that `library` omits use the cheapest algorithm.
  explicit Topology(const Cluster& cluster, LibraryAlgorithms library = {});

  // Links 2k and 2k + 1 are the two directions of one port or trunk.
  const std::vector<Link>& links() const { return links_; }
  int num_devices() const { return static_cast<int>(cluster_.devices.size()); }
  const Cluster& cluster() const { return cluster_; }
  // Returns the path over the fastest network of both devices: inside their node if they share one
  // and it has a fabric. Throws Error(kCaller) with the pools if there is none.
  Path path(int from, int to) const;
  // Requires: from != to.
  Route route(int from, int to) const;
  // Returns the library's algorithm; null selects the cheapest.
  const Algorithm* library_algorithm(CommunicationKind kind) const {
    const auto found = library_.find(kind);
    return found == library_.end() ? nullptr : found->second;
  }
  // Returns a number that identifies the device's node.
  int node(int device) const { return nodes_[at(device)]; }

 private:
  struct Port {
    int out = -1, in = -1;  // indices into links_
  };
  int add_link(std::string name, double bandwidth, int network);
  int choose_network(int from, int to) const;  // -1: none
  int network(int from, int to) const;         // as chosen; throws Error(kCaller)

  Cluster cluster_;
  LibraryAlgorithms library_;
  std::vector<Link> links_;
  std::vector<int> nodes_;                // [device]
  std::vector<std::vector<Port>> ports_;  // [network][device]
  std::vector<int> chosen_;               // [pool of from][pool of to][same node], -1: none
  std::vector<Nanoseconds> latencies_;    // [network]
  std::vector<Port>
      trunks_;  // [network]: out = towards the later pool, in = towards the earlier one
};

}  // namespace medley
