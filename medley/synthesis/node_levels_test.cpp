#include "medley/synthesis/node_levels.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace medley {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

double sum_of(const std::vector<double>& shares, const std::vector<int>& devices) {
  double sum = 0;
  for (int device : devices) sum += shares[at(device)];
  return sum;
}

// Nodes have 6, 3 and 1 of 10.
TEST(NodeLevels, FromSpeedToAsMuchForEveryNode) {
  const std::vector<double> speeds{2, 2, 2, 1, 2, 1};
  const std::vector<std::vector<int>> nodes{{0, 1, 2}, {3, 4}, {5}};
  EXPECT_THAT(shares_at_level(speeds, nodes, 0),
              Pointwise(DoubleNear(1e-12), {.2, .2, .2, .1, .2, .1}));
  const double third = 1.0 / 3;
  EXPECT_THAT(shares_at_level(speeds, nodes, 1),
              Pointwise(DoubleNear(1e-12),
                        {third / 3, third / 3, third / 3, third / 3, third * 2 / 3, third}));
  // Halfway from 0.6 to a third; the others share the rest 3 : 1.
  const double most = (0.6 + third) / 2, rest = 1 - most;
  EXPECT_THAT(
      shares_at_level(speeds, nodes, 0.5),
      Pointwise(DoubleNear(1e-12), {most / 3, most / 3, most / 3, rest / 4, rest / 2, rest / 4}));
}

TEST(NodeLevels, NodesStayBelowTheLevelAndShareBySpeed) {
  std::mt19937 random(7);
  for (int seed = 0; seed < 1000; ++seed) {
    std::vector<double> speeds;
    std::vector<std::vector<int>> nodes(1 + random() % 6);
    for (auto& node : nodes)
      for (size_t more = 1 + random() % 4; more > 0; --more) {
        node.push_back(static_cast<int>(speeds.size()));
        speeds.push_back(0.1 + static_cast<double>(random() % 100) / 10);
      }
    const double level = static_cast<double>(random() % 11) / 10;
    const std::vector<double> shares = shares_at_level(speeds, nodes, level);
    const std::vector<double> by_speed = shares_at_level(speeds, nodes, 0);
    double sum = 0, most = 0, rate = 0;
    for (const auto& node : nodes) {
      sum += sum_of(shares, node);
      most = std::max(most, sum_of(by_speed, node));
      rate = std::max(rate, sum_of(shares, node) / sum_of(by_speed, node));
    }
    most -= level * (most - 1 / static_cast<double>(nodes.size()));
    EXPECT_NEAR(sum, 1, 1e-9);
    for (const auto& node : nodes) {
      const double share = sum_of(shares, node);
      EXPECT_LE(share, most + 1e-9);
      EXPECT_NEAR(share, std::min(most, rate * sum_of(by_speed, node)), 1e-9);
      for (int device : node)
        EXPECT_NEAR(shares[at(device)] / share, speeds[at(device)] / sum_of(speeds, node), 1e-9);
    }
  }
}

// Two nodes with a port each. One port is busy for 4 of 10 s, the other for 2: 1 s above average.
TEST(UnevenPorts, AreThoseBusierThanTheirLike) {
  Cluster cluster;
  DeviceKind kind;
  kind.name = "k";
  cluster.pools = {{"a", 2, 1, kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a"}, 1e9, 1e-5, {}}};
  const Topology topology(cluster);
  ASSERT_EQ(topology.links().size(), 4U);  // in and out
  Simulation simulation;
  simulation.step = Nanoseconds{10'000'000'000};
  simulation.devices.resize(2);
  EXPECT_THAT(uneven_ports(simulation, topology), DoubleEq(0));
  simulation.bytes_by_link = {{"lan:a/0:out", 4'000'000'000},
                              {"lan:a/0:in", 4'000'000'000},
                              {"lan:a/1:out", 2'000'000'000},
                              {"lan:a/1:in", 2'000'000'000}};
  EXPECT_THAT(uneven_ports(simulation, topology), DoubleNear(0.1, 1e-12));
  simulation.devices[1].computes = Nanoseconds{9'500'000'000};
  EXPECT_THAT(uneven_ports(simulation, topology), DoubleNear(0.05, 1e-12));
}

}  // namespace
}  // namespace medley
