#include "medley/network/estimate.h"
#include "medley/base/at.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace medley {
namespace {

constexpr int kRuns = 300;

// Pools of several nodes and devices; with or without a fabric inside nodes; one switch for all, or
// one per pool with a trunk.
Cluster random_cluster(std::mt19937& random) {
  Cluster cluster;
  const int pools = 1 + static_cast<int>(random() % 3);
  std::vector<std::string> names;
  for (int p = 0; p < pools; ++p) {
    NodePool pool;
    pool.name = std::string(1, static_cast<char>('a' + p));
    pool.count = 1 + static_cast<int>(random() % 3);
    pool.devices_per_node = 1 + static_cast<int>(random() % 4);
    names.push_back(pool.name);
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  const std::optional<double> trunk = random() % 2 ? std::optional<double>(3e8) : std::nullopt;
  cluster.networks.push_back({"lan", false, names, 1e9, 2e-5, trunk});
  if (random() % 2) cluster.networks.push_back({"fabric", true, {}, 7e9, 3e-6, std::nullopt});
  if (random() % 2) cluster.networks.push_back({"fast", false, {"a"}, 4e9, 1e-6, std::nullopt});
  return cluster;
}

Collective random_collective(std::mt19937& random, const Cluster& cluster) {
  Collective collective;
  collective.kind = static_cast<CommunicationKind>(random() % at(CommunicationKind::kTransfer));
  for (int d = 0; d < static_cast<int>(cluster.devices.size()); ++d)
    if (random() % 5) collective.devices.push_back(d);
  if (collective.devices.empty()) collective.devices = {0};
  if (random() % 3 == 0) std::shuffle(collective.devices.begin(), collective.devices.end(), random);
  collective.granule = 4;
  const size_t n = collective.devices.size();
  const int64_t longest = 1 << (random() % 20);
  const bool equal = random() % 3 == 0;
  for (size_t i = 0; i < num_lengths(collective.kind, n); ++i)
    collective.lengths.push_back(
        equal               ? 4 * longest
        : random() % 4 == 0 ? 0
                            : 4 * static_cast<int64_t>(random() % static_cast<unsigned>(longest)));
  return collective;
}

// Compares the equations with the messages that they summarise.
TEST(Estimate, TimeAndTrafficAreThoseOfTheMessages) {
  std::mt19937 random(11);
  for (int run = 0; run < kRuns; ++run) {
    const Topology topology(random_cluster(random));
    const Collective collective = random_collective(random, topology.cluster());
    const Grouping grouping = group_by_node(collective, topology);
    for (const Algorithm& algorithm : algorithms()) {
      if (!fits(algorithm, collective.kind)) continue;
      EXPECT_EQ(estimate(algorithm, collective, topology),
                estimate(messages(algorithm, collective, grouping), collective, topology))
          << run << " " << algorithm.name;
      std::vector<int64_t> bytes(topology.links().size());
      for (const Message& message : messages(algorithm, collective, grouping))
        for (int link :
             topology.path(collective.devices[at(message.from)], collective.devices[at(message.to)])
                 .links)
          bytes[at(link)] += message.bytes;
      EXPECT_EQ(traffic(algorithm, collective, topology), bytes) << run << " " << algorithm.name;
    }
  }
}

// All nodes are identical, so one represents them, even if pools differ in their networks.
TEST(Estimate, OneOfEqualNodesGivesTheTime) {
  for (const int devices : {1, 2, 4})
    for (const bool fabric : {false, true})
      for (const bool shortcut : {false, true}) {
        Cluster cluster;
        for (int p = 0; p < 2; ++p) {
          cluster.pools.push_back({});
          cluster.pools.back().name = std::string(1, static_cast<char>('a' + p));
          cluster.pools.back().count = 3;
          cluster.pools.back().devices_per_node = devices;
        }
        cluster.devices = list_devices(cluster.pools);
        cluster.networks.push_back({"lan", false, {"a", "b"}, 1e9, 2e-5, std::nullopt});
        if (fabric) cluster.networks.push_back({"fabric", true, {}, 7e9, 3e-6, std::nullopt});
        if (shortcut) cluster.networks.push_back({"fast", false, {"b"}, 4e9, 1e-6, std::nullopt});
        const Topology topology(cluster);
        Collective collective{CommunicationKind::kAllToAll, {}, {}, 4};
        for (int d = 0; d < 6 * devices; ++d) collective.devices.push_back(d);
        collective.lengths.assign(collective.devices.size() * collective.devices.size(), 40000);
        const Grouping grouping = group_by_node(collective, topology);
        for (const Algorithm& algorithm : algorithms()) {
          if (!algorithm.for_all_to_all) continue;
          EXPECT_EQ(estimate(algorithm, collective, topology),
                    estimate(messages(algorithm, collective, grouping), collective, topology))
              << devices << fabric << shortcut << " " << algorithm.name;
        }
      }
}

// Skipped algorithms never win: the result is the cheapest over all messages.
TEST(Estimate, TheCheapestIsThatOfAllMessages) {
  std::mt19937 random(12);
  for (int run = 0; run < kRuns; ++run) {
    const Topology topology(random_cluster(random));
    const Collective collective = random_collective(random, topology.cluster());
    const Grouping grouping = group_by_node(collective, topology);
    const size_t num_nodes = 1 + at(*std::max_element(grouping.node.begin(), grouping.node.end()));
    const bool nested = num_nodes > 1 && num_nodes < grouping.node.size();
    const Algorithm* best = nullptr;
    Nanoseconds time;
    for (const Algorithm& algorithm : algorithms()) {
      if (!fits(algorithm, collective.kind) || (algorithm.hierarchical && !nested)) continue;
      const Nanoseconds each =
          estimate(messages(algorithm, collective, grouping), collective, topology);
      if (best && each >= time) continue;
      best = &algorithm;
      time = each;
    }
    const CheapestEstimate found = cheapest_estimate(collective, topology);
    EXPECT_EQ(found.algorithm, best) << run << " " << best->name << " " << found.algorithm->name;
    EXPECT_EQ(found.time, time) << run;
  }
}

}  // namespace
}  // namespace medley
