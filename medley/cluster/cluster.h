#pragma once

// Describes a cluster: nodes, devices, networks. Read from cluster.yaml (docs/formats/cluster.md)
// and the device catalogue. Knows nothing of models.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/at.h"
#include "medley/graph/dtype.h"

namespace medley {

// A device type. Rates are in flop/s by dtype; `peak` is the vendor's figure, `sustained` that of
// large matmuls.
struct DeviceKind {
  std::string name;
  std::map<DType, double> peak, sustained;
  double memory_bytes = 0;
  double memory_bandwidth = 0;  // bytes/s
  double launch_latency = 0;    // seconds per kernel
  // Dtype in which bf16 values of a graph are computed: bf16 if supported, else f16 or f32.
  DType bf16_as = DType::kBF16;
  // bytes/s to its neighbours in one direction: a suggestion for `bandwidth` of a network inside a
  // node. No cost and no hash depends on it.
  std::optional<double> link = std::nullopt;
  double workspace_bytes = 0;  // reserved by kernels from the first one on
  std::string base{};          // type of the catalogue that it is or is based on; empty: none
  bool operator==(const DeviceKind&) const = default;
};
// Returns the dtype that replaces bf16: bf16, f16 or f32; nullopt for another text.
std::optional<DType> parse_bf16_as(std::string_view text);
// Returns a type on which each op takes 1 / speed times as long. Requires: speed > 0.
DeviceKind scaled(DeviceKind kind, double speed);

struct NodePool {  // one entry of `nodes`
  std::string name;
  int count = 1;
  int devices_per_node = 1;
  DeviceKind kind;
  bool preemptible = false;
  double price_per_hour = 0;
  bool operator==(const NodePool&) const = default;
};

// Joint bandwidth of `devices` devices of a node to as many peers, each with a message of `bytes`:
// between two nodes, or between two devices inside one.
struct MessageCurve {
  struct Point {
    int64_t bytes = 0;
    double bandwidth = 0;  // bytes/s
    bool operator==(const Point&) const = default;
  };
  int devices = 1;
  std::vector<Point> points;  // ascending in bytes; times never decrease with bytes
  bool operator==(const MessageCurve&) const = default;
};

struct Network {
  std::string name;
  // True: fabric of a node, one full-duplex port per device. False: switch, one port per node.
  bool inside_node = false;
  std::vector<std::string> connects;   // the pools; empty: inside the nodes of all pools
  double bandwidth = 0;                // bytes/s per port and direction
  double latency = 0;                  // seconds
  std::optional<double> trunk;         // bytes/s per direction, shared by the flows between pools
  std::vector<MessageCurve> curves{};  // ascending in devices; candidates/pools.h prices by these
  // Whether the devices of a node add up gradients one after another. It matters if curves show
  // that one device alone does not fill a port.
  bool one_flow = false;
  bool operator==(const Network&) const = default;
};

struct Device {
  std::string name;  // "<pool>/<node>/<device>": "fast/0/1"
  int pool = 0;      // index into Cluster::pools
  int node = 0;      // within the pool
  int index = 0;     // within the node
  bool operator==(const Device&) const = default;
};

struct Cluster {
  std::vector<NodePool> pools;
  std::vector<Network> networks;
  std::vector<Device> devices;  // in order of pool, node, index
  bool operator==(const Cluster&) const = default;
  const DeviceKind& kind(int device) const { return pools[at(devices[at(device)].pool)].kind; }
};

using Catalogue = std::map<std::string, DeviceKind>;
// Reads every *.json of a directory. Throws Error(kCaller) naming file and place.
Catalogue read_catalogue(const std::filesystem::path& directory);
DeviceKind parse_device_kind(std::string_view json, std::string_view file);

// Returns the devices of the pools, in order of pool, node, index.
std::vector<Device> list_devices(const std::vector<NodePool>& pools);

// Rejects unknown keys. Throws Error(kCaller) "<file>:<line>: nodes[1].count: must be positive:
// -3".
Cluster parse_cluster(std::string_view yaml, std::string_view file, const Catalogue& catalogue);
std::string hash(const Cluster& cluster);  // SHA-256 of its canonical form
std::optional<int> find_device(const Cluster& cluster, std::string_view name);
std::vector<std::string> names_of(const Cluster& cluster, const std::vector<int>& devices);
// Returns the bytes of the device with the least memory. Requires: there are devices.
double least_memory(const Cluster& cluster, const std::vector<int>& devices);
// Returns the devices of each node; both keep the given order.
std::vector<std::vector<int>> by_node(const Cluster& cluster, const std::vector<int>& devices);

}  // namespace medley
