#include "medley/planner/node_loss.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/testing/sample_clusters.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

class NodeLoss : public ::testing::Test {
 protected:
  NodeLoss()
      : graph(parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph")),
        analysis(analyse(graph, {})) {}

  // Returns nodes of one device: `fast` ones, and `slow` ones at half the speed.
  static Cluster nodes(int fast, int slow, double bandwidth, double memory = 1e9) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e9}};
    kind.memory_bandwidth = 1e12;
    kind.launch_latency = 1e-9;
    kind.memory_bytes = memory;
    Cluster cluster =
        two_speeds(1, 1, kind, {{"lan", false, {"fast", "slow"}, bandwidth, 1e-6, {}}});
    cluster.pools[0].count = fast;
    cluster.pools[1].count = slow;
    cluster.devices = list_devices(cluster.pools);
    return cluster;
  }

  Outcome asked(const Cluster& cluster, const std::string& strategy, int tolerate_node_loss) const {
    return plan({.graph = graph,
                 .cluster = cluster,
                 .strategy = strategy,
                 .global_batch = 16,
                 .devices = {},
                 .optimizer = {},
                 .tolerate_node_loss = tolerate_node_loss});
  }

  // Returns the criterion of a plan, and whether it needs copies.
  std::pair<Nanoseconds, ReplicationCost> priced(const Plan& plan, const Cluster& cluster) const {
    const Program program = lower(analysis, plan, cluster);
    const Nanoseconds step = simulate(program, CostModel(cluster)).step;
    const ReplicationCost needs = replication_cost(program, cluster, step);
    return {step + needs.costs(), needs};
  }

  Graph graph;
  GraphAnalysis analysis;
};

// Rows are divided, and every device has the full state.
TEST_F(NodeLoss, StateOnTwoNodesNeedsNoCopies) {
  const Cluster cluster = nodes(1, 1, 1e8);
  const auto found = std::get<Plan>(asked(cluster, "data-parallel-even", 1));
  const ReplicationCost needs = priced(found, cluster).second;
  EXPECT_EQ(found.tolerate_node_loss, 1);
  EXPECT_EQ(needs.costs(), Nanoseconds{});
  EXPECT_EQ(to_string(needs, {1}), "any node may be lost: all of the state is on two or more");
}

TEST_F(NodeLoss, UnreplicatedStateIsRefused) {
  const Cluster cluster = nodes(1, 1, 1e8);
  const Outcome outcome = plan({.graph = graph,
                                .cluster = cluster,
                                .strategy = "data-parallel-even",
                                .global_batch = 16,
                                .devices = {"fast/0/0"},
                                .optimizer = {},
                                .tolerate_node_loss = 1});
  EXPECT_THAT(std::get<Infeasible>(outcome).reason,
              HasSubstr("of the state are on one node, and no other node has memory for a copy"));
}

// Copies cost a fiftieth of the time, and do not occur in every step.
TEST_F(NodeLoss, CopiesAreMadeSoOftenThatTheyCostAFiftieth) {
  EXPECT_EQ((ReplicationCost{.bytes = 1, .copies = {8'000}, .every = 40}.costs()),
            Nanoseconds{200});
  EXPECT_EQ((ReplicationCost{.without = 1, .copies = {}}.costs()), Nanoseconds{int64_t{1} << 60});
}

// Tries all strategies on each choice of devices, in one to four micro-batches: none that tolerates
// node loss beats the result. MEDLEY_NODE_LOSS_CLUSTERS of twelve clusters, one if not set.
TEST_F(NodeLoss, NoOtherPlanIsBetter) {
  const auto most = static_cast<int>(seeds_of("MEDLEY_NODE_LOSS_CLUSTERS", 1));
  int differs = 0, seen = 0;
  for (const auto& [fast, slow] : {std::pair(1, 1), {2, 1}, {2, 2}})
    for (const double bandwidth : {1e6, 1e7, 1e8, 1e9}) {
      if (seen++ == most) return;
      const Cluster cluster = nodes(fast, slow, bandwidth);
      const auto chosen = std::get<Plan>(asked(cluster, "auto", 1));
      EXPECT_EQ(chosen.tolerate_node_loss, 1);
      const Nanoseconds least = priced(chosen, cluster).first;
      const auto usual = std::get<Plan>(asked(cluster, "auto", 0));
      EXPECT_EQ(usual.tolerate_node_loss, 0);
      EXPECT_LE(least, priced(usual, cluster).first);
      differs += usual.pipelines != chosen.pipelines;
      const auto all = static_cast<unsigned>(cluster.devices.size());
      for (unsigned some = 1; some < 1U << all; ++some)
        for (const Strategy& strategy : strategies())
          for (int64_t microbatches = 1; microbatches <= 4; ++microbatches) {
            std::vector<std::string> names;
            for (unsigned d = 0; d < all; ++d)
              if (some >> d & 1U) names.push_back(cluster.devices[d].name);
            const Outcome other = plan({.graph = graph,
                                        .cluster = cluster,
                                        .strategy = std::string(strategy.name),
                                        .global_batch = 16,
                                        .microbatches = microbatches,
                                        .devices = names,
                                        .optimizer = {}});
            if (const auto* found = std::get_if<Plan>(&other))
              EXPECT_LE(least, priced(*found, cluster).first)
                  << fmt::format("{} on {} devices, {} micro-batches, {} bytes/s, {} {}",
                                 strategy.name,
                                 names.size(),
                                 microbatches,
                                 bandwidth,
                                 fast,
                                 slow);
          }
      if (HasFailure()) return;
    }
  EXPECT_GT(differs, 0);
}

}  // namespace
}  // namespace medley
