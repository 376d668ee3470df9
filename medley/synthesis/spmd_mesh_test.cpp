#include "medley/synthesis/spmd_mesh.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/synthesis/spmd_ops.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {
namespace {

GraphAnalysis mesh_mlp() {
  std::ifstream file("tests/data/mlp.graph");
  std::stringstream text;
  text << file.rdbuf();
  return analyse(parse_graph(text.str(), "mlp.graph"), {});
}

// Returns nodes of one device. A pool of devices is one type. With `own_kinds` every device has its
// own type with the same figures, so none are merged.
Cluster cluster_of(const std::vector<int>& counts, bool own_kinds) {
  Cluster cluster;
  const DeviceKind fastest{"k", {}, {{DType::kF32, 1e12}, {DType::kF64, 5e11}}, 1e12, 1e10, 1e-6};
  Network lan{"lan", false, {}, 1e9, 2e-5, std::nullopt};
  for (size_t p = 0; p < counts.size(); ++p)
    for (int i = 0; i < counts[p]; ++i) {
      if (i == 0 || own_kinds) {
        DeviceKind kind = scaled(fastest, 1 / (1 + 0.7 * static_cast<double>(p)));
        kind.name = fmt::format("k{}.{}", p, i);
        NodePool pool;
        pool.name = fmt::format("p{}.{}", p, i);
        pool.kind = kind;
        pool.count = own_kinds ? 1 : counts[p];
        cluster.pools.push_back(pool);
        lan.connects.push_back(pool.name);
      }
      cluster.devices.push_back({fmt::format("{}.{}", p, i),
                                 static_cast<int>(cluster.pools.size()) - 1,
                                 own_kinds ? 0 : i,
                                 0});
    }
  cluster.networks = {lan};
  return cluster;
}

// Returns shares whose sum is a power of two, so they divide other powers evenly.
std::vector<int64_t> random_shares(size_t devices, std::mt19937& random) {
  std::vector<int64_t> shares;
  for (size_t d = 0; d < devices; ++d) shares.push_back(1 + static_cast<int64_t>(random() % 3));
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  shares.back() += 64 - sum;
  return shares;
}

std::vector<double> to_double(const std::vector<int64_t>& shares) {
  return {shares.begin(), shares.end()};
}

SpmdMesh mesh_of(const CostModel& costs, const std::vector<int64_t>& shares) {
  std::vector<int> devices(shares.size());
  std::iota(devices.begin(), devices.end(), 0);
  const int64_t rows = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  return {costs,
          devices,
          {{"rows", {}, {}}, {"even", {}, {}}, {"speed", {}, to_double(shares)}},
          {rows, shares}};
}

std::vector<int> random_counts(std::mt19937& random) {
  std::vector<int> counts{2};
  for (size_t pools = random() % 3; pools > 0; --pools)
    counts.push_back(1 + static_cast<int>(random() % 4));
  return counts;
}

// Compares one device per type and length with all devices.
TEST(OpCatalogue, IdenticalDevicesTakeTheTimeOfEach) {
  std::mt19937 random(5);
  const GraphAnalysis analysis = mesh_mlp();
  for (int run = 0; run < 20; ++run) {
    const std::vector<int> counts = random_counts(random);
    const Cluster grouped = cluster_of(counts, false), apart = cluster_of(counts, true);
    const CostModel costs(grouped), costs_apart(apart);
    const std::vector<int64_t> shares = random_shares(grouped.devices.size(), random);
    for (const SpmdPricing& pricing : {SpmdPricing{}, SpmdPricing{to_double(shares)}}) {
      OpCatalogue one(analysis.prepared->graph, *analysis.factors, mesh_of(costs, shares), pricing);
      OpCatalogue each(
          analysis.prepared->graph, *analysis.factors, mesh_of(costs_apart, shares), pricing);
      for (size_t op = 0; op < analysis.prepared->graph.ops.size(); ++op) {
        const std::vector<Ticks>& found = one.of(static_cast<OpId>(op)).costs;
        const std::vector<Ticks>& expected = each.of(static_cast<OpId>(op)).costs;
        ASSERT_EQ(found.size(), expected.size());
        for (size_t c = 0; c < found.size(); ++c)
          EXPECT_NEAR(static_cast<double>(found[c]),
                      static_cast<double>(expected[c]),
                      pricing.weights.empty() ? 0 : 1)
              << run << " " << analysis.prepared->names[op] << " " << c;
      }
    }
  }
}

// At a priced size that shares divide evenly, a redistribution costs the collective of those
// lengths, and copies.
TEST(SpmdMesh, RedistributionsAreCollectivesOfTheirLengths) {
  constexpr int64_t kSide = 1 << 10, kWhole = kSide * kSide;
  std::mt19937 random(6);
  for (int run = 0; run < 20; ++run) {
    const Cluster cluster = cluster_of(random_counts(random), false);
    const CostModel costs(cluster);
    const size_t n = cluster.devices.size();
    const std::vector<int64_t> shares = random_shares(n, random);
    SpmdMesh mesh = mesh_of(costs, shares);
    Collective collective{CommunicationKind::kAllReduce, mesh.devices(), {kWhole}, 1};
    const auto ticks = [&] {
      return static_cast<double>(costs.collective(collective).value.value * kTicksPerNanosecond);
    };
    const FactoredShape shape{1, {kSide, kSide}};
    const auto redistribution = [&](const AxisPlacement& from, const AxisPlacement& to) {
      return static_cast<double>(mesh.redistribution(shape, Placement{from}, Placement{to}));
    };
    EXPECT_NEAR(redistribution(partial_sum(), replicated()), ticks(), 1) << run;

    collective.lengths.clear();
    for (int64_t share : shares) collective.lengths.push_back(share * (kWhole / 64));
    collective.kind = CommunicationKind::kAllGather;
    EXPECT_NEAR(redistribution(sharded(0, 2), replicated()), ticks(), 1) << run;
    collective.kind = CommunicationKind::kReduceScatter;
    EXPECT_NEAR(redistribution(partial_sum(), sharded(0, 2)), ticks(), 1) << run;

    collective.kind = CommunicationKind::kAllToAll;
    collective.lengths.clear();
    for (int64_t from : shares)
      for (int64_t to : shares) collective.lengths.push_back(from * to * (kWhole / 64 / 64));
    const double most =
        static_cast<double>(*std::max_element(shares.begin(), shares.end()) * (kWhole / 64));
    double launch = 0, slowest = 1e30;
    for (int d = 0; d < mesh.num_devices(); ++d) {
      launch = std::max(launch, mesh.kind(d).launch_latency);
      slowest = std::min(slowest, mesh.kind(d).memory_bandwidth);
    }
    const double copies = 2 * (launch + 2 * most / slowest) * kTicksPerSecond;
    EXPECT_NEAR(redistribution(sharded(0, 2), sharded(1, 2)), ticks() + copies, 1) << run;
  }
}

TEST(SearchOptions, RoundsAndNoClockEndASearch) {
  EXPECT_LE(search_options().rounds, 100);
  EXPECT_EQ(search_options().seconds, std::nullopt);
}

}  // namespace
}  // namespace medley
