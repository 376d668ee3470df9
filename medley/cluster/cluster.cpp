#include "medley/cluster/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "medley/base/sha256.h"

namespace medley {
namespace {

// Numbers print with the fewest digits that read back equal. Names have no blanks.
std::string canonical(const DeviceKind& kind) {
  std::string text = fmt::format(
      "kind {} {} {} {}", kind.name, kind.memory_bytes, kind.memory_bandwidth, kind.launch_latency);
  for (const auto* rates : {&kind.peak, &kind.sustained}) {
    text += " |";
    for (const auto& [dtype, rate] : *rates) text += fmt::format(" {} {}", to_string(dtype), rate);
  }
  if (kind.bf16_as != DType::kBF16) text += fmt::format(" | bf16 as {}", to_string(kind.bf16_as));
  if (kind.workspace_bytes > 0) text += fmt::format(" | workspace {}", kind.workspace_bytes);
  return text;
}

}  // namespace

std::optional<DType> parse_bf16_as(std::string_view text) {
  const std::optional<DType> dtype = parse_dtype(text);
  const bool stands = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  return stands ? dtype : std::nullopt;
}

std::string hash(const Cluster& cluster) {
  std::string text = "medley-cluster 1\n";
  for (const NodePool& pool : cluster.pools)
    text += fmt::format("pool {} {} {} {} {} {}\n",
                        pool.name,
                        pool.count,
                        pool.devices_per_node,
                        pool.preemptible,
                        pool.price_per_hour,
                        canonical(pool.kind));
  for (const Network& network : cluster.networks) {
    text += fmt::format("network {} {} [{}] {} {} {}\n",
                        network.name,
                        network.inside_node,
                        fmt::join(network.connects, " "),
                        network.bandwidth,
                        network.latency,
                        network.trunk ? fmt::to_string(*network.trunk) : "none");
    if (network.one_flow) text += "flows one\n";
    for (const MessageCurve& curve : network.curves) {
      text += fmt::format("curve {}", curve.devices);
      for (const MessageCurve::Point& point : curve.points)
        text += fmt::format(" {} {}", point.bytes, point.bandwidth);
      text += "\n";
    }
  }
  return sha256_hex(text);
}

std::vector<Device> list_devices(const std::vector<NodePool>& pools) {
  std::vector<Device> devices;
  for (size_t p = 0; p < pools.size(); ++p)
    for (int node = 0; node < pools[p].count; ++node)
      for (int index = 0; index < pools[p].devices_per_node; ++index)
        devices.push_back({fmt::format("{}/{}/{}", pools[p].name, node, index),
                           static_cast<int>(p),
                           node,
                           index});
  return devices;
}

std::optional<int> find_device(const Cluster& cluster, std::string_view name) {
  for (size_t i = 0; i < cluster.devices.size(); ++i)
    if (cluster.devices[i].name == name) return static_cast<int>(i);
  return std::nullopt;
}

std::vector<std::string> names_of(const Cluster& cluster, const std::vector<int>& devices) {
  std::vector<std::string> names;
  for (int device : devices) names.push_back(cluster.devices[at(device)].name);
  return names;
}

double least_memory(const Cluster& cluster, const std::vector<int>& devices) {
  double least = cluster.kind(devices[0]).memory_bytes;
  for (const int device : devices) least = std::min(least, cluster.kind(device).memory_bytes);
  return least;
}

std::vector<std::vector<int>> by_node(const Cluster& cluster, const std::vector<int>& devices) {
  std::vector<std::vector<int>> nodes;
  std::map<std::pair<int, int>, size_t> known;  // (pool, node) -> index into nodes
  for (int device : devices) {
    const Device& at = cluster.devices[static_cast<size_t>(device)];
    const auto [found, added] = known.try_emplace({at.pool, at.node}, nodes.size());
    if (added) nodes.emplace_back();
    nodes[found->second].push_back(device);
  }
  return nodes;
}

}  // namespace medley
