#include "medley/synthesis/node_levels.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "medley/base/at.h"
#include "medley/synthesis/spmd_axis.h"
#include "medley/synthesis/tuning.h"

namespace medley {
std::vector<double> shares_at_level(const std::vector<double>& speeds,
                                    const std::vector<std::vector<int>>& nodes,
                                    double level) {
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<double> by_speed;
  for (const auto& devices : nodes) {
    double sum = 0;
    for (int d : devices) sum += speeds[at(d)];
    by_speed.push_back(sum / all);
  }
  const double even = 1 / static_cast<double>(nodes.size());
  const double largest = *std::ranges::max_element(by_speed);
  const double most = largest - level * (largest - even);
  // Nodes are capped at the level one by one, fastest first, until the others take the rest.
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t n) { return by_speed[n]; });
  std::vector<double> shares(speeds.size());
  double left = 1, left_by_speed = 1;
  for (size_t n : order) {
    const double share = std::min(most, left * by_speed[n] / left_by_speed);
    for (int d : nodes[n]) shares[at(d)] = share * speeds[at(d)] / (by_speed[n] * all);
    left -= share;
    left_by_speed -= by_speed[n];
  }
  return shares;
}

std::vector<std::vector<double>> shares_of_levels(const Cluster& cluster,
                                                  const std::vector<int>& devices,
                                                  const std::vector<double>& speeds) {
  std::vector<std::vector<int>> nodes = by_node(cluster, devices);
  std::vector<double> of_nodes;
  for (std::vector<int>& node : nodes) {
    of_nodes.push_back(0);
    for (int& device : node) {
      device = static_cast<int>(std::ranges::find(devices, device) - devices.begin());
      of_nodes.back() += speeds[at(device)];
    }
  }
  std::vector<std::vector<double>> shares;
  if (are_equal(of_nodes)) return shares;
  for (const double level : kNodeLevels) shares.push_back(shares_at_level(speeds, nodes, level));
  return shares;
}

double uneven_ports(const Simulation& simulation, const Topology& topology) {
  std::map<int, std::vector<double>> busy;  // [network][link] seconds
  for (const Link& link : topology.links()) {
    const auto found = simulation.bytes_by_link.find(link.name);
    const Bytes bytes{found == simulation.bytes_by_link.end() ? 0 : found->second};
    busy[link.network].push_back((bytes / link.bandwidth).value);
  }
  double longest = 0, more = 0;
  for (const auto& [network, seconds] : busy) {
    const double most = *std::ranges::max_element(seconds);
    if (most <= longest) continue;
    longest = most;
    more = most - std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                      static_cast<double>(seconds.size());
  }
  double idle = 1;
  for (const SimulatedDevice& device : simulation.devices)
    idle = std::min(idle, 1 - device.computes / simulation.step);
  return std::min(idle, more / to_seconds(simulation.step).value);
}

}  // namespace medley
