// An accepted cluster, written with all its own values, parses back equal.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/cluster/cluster.h"
#include "medley/network/topology.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

namespace {

constexpr int kMostPaths = 64;

std::string rates(const std::map<DType, double>& rates) {
  std::string text;
  for (const auto& [dtype, rate] : rates)
    text += fmt::format("{}{}: {} flop/s", text.empty() ? "" : ", ", to_string(dtype), rate);
  return text;
}

// Prints device types under names outside of any catalogue. Two pools have types of one name with
// different values only if the cluster was not read from a file.
std::string kind(const DeviceKind& kind, size_t pool) {
  return fmt::format(
      "  kind-{}: {{memory: {} B, memory_bandwidth: {} B/s, launch_latency: {} s, peak: {{{}}}, "
      "sustained: {{{}}}}}\n",
      pool,
      kind.memory_bytes,
      kind.memory_bandwidth,
      kind.launch_latency,
      rates(kind.peak),
      rates(kind.sustained));
}

std::string curve(const MessageCurve& curve) {
  std::string points;
  for (const auto& [bytes, bandwidth] : curve.points)
    points += fmt::format("{}[{} B, {} B/s]", points.empty() ? "" : ", ", bytes, bandwidth);
  return fmt::format("{{devices: {}, points: [{}]}}", curve.devices, points);
}

std::string network(const Network& network) {
  std::string text = fmt::format("  - {{name: \"{}\"", network.name);
  if (network.inside_node) text += ", inside: node";
  if (!network.connects.empty())
    text += fmt::format(", {}: [\"{}\"]",
                        network.inside_node ? "pools" : "connects",
                        fmt::join(network.connects, "\", \""));
  text += fmt::format(", bandwidth: {} B/s, latency: {} s", network.bandwidth, network.latency);
  if (network.trunk) text += fmt::format(", trunk: {} B/s", *network.trunk);
  std::string curves;
  for (const MessageCurve& each : network.curves)
    curves += (curves.empty() ? "" : ", ") + curve(each);
  return text + (curves.empty() ? "}\n" : fmt::format(", curves: [{}]}}\n", curves));
}

std::string written(const Cluster& cluster) {
  std::string nodes, networks, devices;
  for (size_t i = 0; i < cluster.pools.size(); ++i) {
    const NodePool& pool = cluster.pools[i];
    nodes += fmt::format(
        "  - {{name: \"{}\", count: {}, devices_per_node: {}, device: kind-{}, preemptible: {}, "
        "price_per_hour: {}}}\n",
        pool.name,
        pool.count,
        pool.devices_per_node,
        i,
        pool.preemptible,
        pool.price_per_hour);
    devices += kind(pool.kind, i);
  }
  for (const Network& each : cluster.networks) networks += network(each);
  return fmt::format("format: medley-cluster\nversion: 1\nnodes:\n{}{}{}devices:\n{}",
                     nodes,
                     networks.empty() ? "" : "networks:\n",
                     networks,
                     devices);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Catalogue catalogue = read_catalogue(MEDLEY_ROOT "/data/devices");
  Cluster cluster;
  if (!accepts([&] { cluster = parse_cluster(text_of(data, size), "fuzz.yaml", catalogue); }))
    return 0;
  const std::string text = written(cluster);
  Cluster again = parse_cluster(text, "written.yaml", {});
  for (size_t i = 0; i < cluster.pools.size(); ++i) {
    again.pools.at(i).kind.name = cluster.pools[i].kind.name;
    again.pools[i].kind.link = cluster.pools[i].kind.link;
  }
  require(again == cluster, text);
  require_equal(hash(again), hash(cluster), "equal clusters have equal hashes");

  accepts([&] {
    const Topology topology(cluster);
    for (int to = 1; to < topology.num_devices() && to <= kMostPaths; ++to) {
      require(find_device(cluster, cluster.devices.at(static_cast<size_t>(to)).name) == to,
              "devices are found by their names");
      accepts([&] { require(topology.path(0, to).bandwidth.value > 0, "a path has a bandwidth"); });
    }
  });
  return 0;
}
