#include "medley/planner/planner.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <sstream>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/testing/sample_clusters.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

class Planner : public ::testing::Test {
 protected:
  Planner() {
    graph = parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph");
    cluster = two_and_two(1e9);
  }

  // Returns two devices and two that are half as fast at everything.
  static Cluster two_and_two(double memory_bytes) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e9}};
    kind.memory_bandwidth = 1e12;
    kind.launch_latency = 1e-9;
    kind.memory_bytes = memory_bytes;
    return two_speeds(2, 2, kind, {{"lan", false, {"fast", "slow"}, 1e9, 1e-6, {}}});
  }

  Request request(const std::string& strategy, int64_t rows) const {
    return {.graph = graph,
            .cluster = cluster,
            .strategy = strategy,
            .global_batch = rows,
            .devices = {},
            .optimizer = {}};
  }

  Plan planned(const Request& wanted) const {
    Outcome outcome = plan(wanted);
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      ADD_FAILURE() << no->reason;
      return {};
    }
    Plan found = std::get<Plan>(std::move(outcome));
    verify(found, graph, cluster);
    return found;
  }

  std::vector<int64_t> rows_of(const Plan& found) const {
    std::vector<int64_t> rows(found.pipelines.at(0).stages.at(0).mesh.devices.size(), 0);
    for (const Microbatch& microbatch : found.pipelines[0].microbatches)
      for (size_t d = 0; d < rows.size(); ++d) rows[d] += microbatch.lengths.at(d);
    return rows;
  }

  static std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const Strategy& strategy : strategies()) all.emplace_back(strategy.name);
    return all;
  }

  std::string refusal(const Request& wanted) const {
    try {
      (void)plan(wanted);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller);
      return error.what();
    }
    return "accepted";
  }

  Graph graph;
  Cluster cluster;
};

// The set of strategies is part of the interface.
TEST_F(Planner, Strategies) {
  EXPECT_THAT(names(),
              ElementsAre("auto",
                          "data-parallel-even",
                          "data-parallel-proportional",
                          "hap-even",
                          "hap",
                          "harp",
                          "megatron",
                          "autohet"));
}

TEST_F(Planner, EvenGivesAllTheSame) {
  EXPECT_THAT(rows_of(planned(request("data-parallel-even", 64))), ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(rows_of(planned(request("data-parallel-even", 6))), ElementsAre(2, 2, 1, 1));
}

TEST_F(Planner, ProportionalGivesRowsBySpeed) {
  EXPECT_THAT(rows_of(planned(request("data-parallel-proportional", 60))),
              ElementsAre(20, 20, 10, 10));
}

// Devices without rows still take part in the sums.
TEST_F(Planner, FewerRowsThanDevicesLeavesZeros) {
  EXPECT_THAT(rows_of(planned(request("data-parallel-even", 3))), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(rows_of(planned(request("data-parallel-proportional", 2))), ElementsAre(1, 1, 0, 0));
}

TEST_F(Planner, AutoTakesTheShortestStep) {
  const CostModel costs(cluster);
  const auto step = [&](const std::string& strategy) {
    return simulate(lower(graph, planned(request(strategy, 60)), cluster, {}), costs).step;
  };
  Nanoseconds shortest = step("hap");
  for (const char* strategy : {"data-parallel-even", "data-parallel-proportional"})
    shortest = std::min(shortest, step(strategy));
  EXPECT_EQ(step("auto"), shortest);
}

// A strategy's result does not depend on a limit that it can meet.
TEST_F(Planner, GivesUpWhereItCannotBeFaster) {
  const CostModel costs(cluster);
  for (const std::string strategy : {"megatron", "hap", "harp"}) {
    Request wanted = request(strategy, 64);
    const Plan free = planned(wanted);
    const Nanoseconds step = simulate(lower(graph, free, cluster, {}), costs).step;
    wanted.faster_than = step + Nanoseconds{1};
    EXPECT_EQ(print(planned(wanted)), print(free)) << strategy;
  }
  Request grids = request("megatron", 60);
  grids.faster_than = Nanoseconds{1};
  EXPECT_TRUE(std::holds_alternative<Infeasible>(plan(grids)));
}

TEST_F(Planner, RowsBySpeedKeepAllDevicesBusy) {
  const Plan found = planned(request("data-parallel-proportional", 60));
  const Simulation simulation = simulate(lower(graph, found, cluster, {}), CostModel(cluster));
  const auto seconds = [&](size_t device) {
    return to_seconds(simulation.devices[device].computes).value;
  };
  EXPECT_NEAR(seconds(0), seconds(3), 0.02 * seconds(0));
}

// A data-parallel plan has one mesh and the rows, without ops or parameters.
TEST_F(Planner, PlansSayNoMoreThanRows) {
  for (const Strategy& strategy : strategies()) {
    const Plan found = planned(request(std::string(strategy.name), 60));
    const Stage& stage = found.pipelines.at(0).stages.at(0);
    if (strategy.name.starts_with("data-parallel"))
      EXPECT_TRUE(found.parts.empty() && stage.placements.empty() && stage.batch.empty() &&
                  stage.ops.empty() && stage.updates.empty());
    EXPECT_EQ(found.graph_hash, hash(graph));
    EXPECT_EQ(found.cluster_hash, hash(cluster));
    EXPECT_EQ(parse_plan(print(found), "p.json"), found);
  }
}

TEST_F(Planner, AsManyMicrobatchesAsAsked) {
  Request wanted = request("data-parallel-even", 10);
  wanted.microbatches = 3;
  const Plan found = planned(wanted);
  EXPECT_THAT(rows_of(found), ElementsAre(3, 3, 2, 2));
  EXPECT_EQ(found.pipelines[0].microbatches.size(), 3u);
}

TEST_F(Planner, OnlyTheDevicesAsked) {
  Request wanted = request("data-parallel-proportional", 12);
  wanted.devices = {"slow/0/1", "fast/0/0"};
  const Plan found = planned(wanted);
  EXPECT_THAT(found.pipelines[0].stages[0].mesh.devices, ElementsAre("slow/0/1", "fast/0/0"));
  EXPECT_THAT(rows_of(found), ElementsAre(4, 8));
}

// A quarter of a wide layer does not fit on devices with little memory.
TEST_F(Planner, ShortUnequalMemoryShardsParameters) {
  std::string text = LocalFiles().read("tests/data/mlp.graph");
  const auto widen = [&](const std::string& from, const std::string& to) {
    for (size_t i = text.find(from); i != std::string::npos; i = text.find(from, i + to.size()))
      text.replace(i, from.size(), to);
  };
  widen("[32", "[512");
  widen(", 32]", ", 512]");
  widen("[16", "[256");
  widen(", 16]", ", 256]");
  graph = parse_graph(text, "wide.graph");
  const double little = 300 << 10;
  cluster = two_and_two(little);
  EXPECT_TRUE(std::holds_alternative<Infeasible>(plan(request("hap", 4))));
  cluster.pools[1].kind.memory_bytes = 4 * little;
  const Plan found = planned(request("hap", 4));
  ASSERT_THAT(found.parts, testing::Contains(testing::Field(&Part::name, "memory")));
  for (const DeviceMemory& each : memory_uses(lower(graph, found, cluster, {})))
    EXPECT_LE(static_cast<double>(each.use.peak), cluster.kind(each.device).memory_bytes);
}

// One device, one micro-batch: only recomputation is possible.
TEST_F(Planner, HapRecomputesWhereMemoryIsShort) {
  graph = parse_graph(LocalFiles().read("python/tests/golden/gpt.graph"), "gpt.graph");
  cluster.devices.resize(1);
  Request wanted = request("hap", 32);
  wanted.microbatches = 1;
  double most = 0;
  for (const DeviceMemory& each : memory_uses(lower(graph, planned(wanted), cluster, {})))
    most = static_cast<double>(each.use.peak);
  for (auto& pool : cluster.pools) pool.kind.memory_bytes = 0.7 * most;
  wanted.strategy = "data-parallel-even";
  EXPECT_TRUE(std::holds_alternative<Infeasible>(plan(wanted)));
  wanted.strategy = "hap";
  const Plan found = planned(wanted);
  EXPECT_EQ(found.pipelines[0].stages[0].recompute, "blocks");
  for (const DeviceMemory& each : memory_uses(lower(graph, found, cluster, {})))
    EXPECT_LE(static_cast<double>(each.use.peak), 0.7 * most);
}

TEST_F(Planner, MemoryDecidesTheMicrobatches) {
  cluster = two_and_two(40e3);
  const Plan found = planned(request("data-parallel-even", 400));
  const size_t count = found.pipelines[0].microbatches.size();
  EXPECT_GT(count, 1u);
  // One micro-batch less does not fit.
  Request fewer = request("data-parallel-even", 400);
  fewer.microbatches = static_cast<int64_t>(count) - 1;
  const Outcome outcome = plan(fewer);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  EXPECT_THAT(to_string(std::get<Infeasible>(outcome)),
              AllOf(HasSubstr("fast/0/0 (whole) needs "), HasSubstr("and has 39.1 KiB")));
}

TEST_F(Planner, MisfitNamesWhatDoesNotFit) {
  cluster = two_and_two(2e3);
  const Outcome outcome = plan(request("auto", 16));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  EXPECT_THAT(
      to_string(std::get<Infeasible>(outcome)),
      AllOf(HasSubstr("\n  data-parallel-even, data-parallel-proportional: fast/0/0 (whole) "),
            HasSubstr("\n  hap: fast/0/0 (whole) needs ")));
}

// Each reason appears once, with its strategies, in a few short lines, then advice.
TEST_F(Planner, WhyNothingFitsIsShort) {
  cluster = two_and_two(2e3);
  const Outcome outcome = plan(request("auto", 4));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  std::istringstream text(to_string(std::get<Infeasible>(outcome)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  EXPECT_THAT(lines, SizeIs(AllOf(Ge(4u), Le(7u))));
  EXPECT_THAT(lines, Each(SizeIs(Le(150u))));
  std::set<std::string> reasons;
  for (const std::string& line : lines)
    EXPECT_TRUE(reasons.insert(line.substr(line.find(": ") + 1)).second) << line;
  EXPECT_THAT(lines[1], HasSubstr("data-parallel-even, data-parallel-proportional: fast/0/0"));
  EXPECT_THAT(lines.back(), MatchesRegex("  for hap, .* would do"));
}

TEST(InShort, SaysEachReasonOnce) {
  EXPECT_THAT(
      in_short({{"a", {"x lacks 1 B", "\n  in this op", "2 micro-batches would fit"}},
                {"b", {"no chain"}},
                {"c", {"x lacks 1 B", "\n  in that op", "3 micro-batches would fit"}},
                {"d", {"no chain"}}}),
      ElementsAre("a, c: x lacks 1 B", "b, d: no chain", "for c, 3 micro-batches would fit"));
  EXPECT_THAT(in_short({}), ElementsAre());
}

TEST_F(Planner, RequestsThatMakeNoSense) {
  EXPECT_EQ(
      refusal(request("fastest", 8)),
      fmt::format("strategy: found \"fastest\", expected one of {}", fmt::join(names(), ", ")));
  EXPECT_EQ(refusal(request("auto", 0)), "global batch: found 0, expected 1 to 1099511627776 rows");
  Request wanted = request("auto", 8);
  wanted.microbatches = 9;
  EXPECT_EQ(refusal(wanted), "microbatches: found 9, expected 1 to 8, the global batch");
  wanted.microbatches = 0;
  wanted.devices = {"fast/0/9"};
  EXPECT_EQ(refusal(wanted),
            "devices: found \"fast/0/9\", expected a device of the cluster, such as \"fast/0/0\"");
  wanted.devices = {"fast/0/0", "fast/0/0"};
  EXPECT_EQ(refusal(wanted), "devices: found \"fast/0/0\" twice, expected it once");
}

// The search tries no memory price and no number of micro-batches in between.
TEST_F(Planner, HapSearchesNoFurtherWhereWhatHoldsLeastDoesNotFit) {
  cluster = two_and_two(2e3);
  Request asked = request("hap", 64);
  std::set<std::string> messages;
  asked.listener.progress = [&](std::string_view what, size_t, size_t) { messages.emplace(what); };
  EXPECT_TRUE(std::holds_alternative<Infeasible>(plan(asked)));
  EXPECT_THAT(messages, ElementsAre("hap with 1 micro-batches", "hap: what holds least"));
}

// There are as many pools as devices: they are searched as one, with an equally good result.
TEST_F(Planner, ManyPoolsThatDifferInTheirNamesOnlyArePlannedAsOne) {
  const auto with_pools = [&](int pools, int nodes) {
    Cluster many;
    for (int pool = 0; pool < pools; ++pool) {
      many.pools.push_back(cluster.pools[0]);
      many.pools.back().name = fmt::format("node{}", pool);
      many.pools.back().count = nodes;
      many.pools.back().devices_per_node = 1;
    }
    many.networks = {{"lan", false, {}, 1e9, 1e-6, {}}};
    for (const NodePool& pool : many.pools) many.networks[0].connects.push_back(pool.name);
    many.devices = list_devices(many.pools);
    return many;
  };
  const Cluster many = with_pools(17, 1), one = with_pools(1, 17);
  const auto step = [&](const Plan& found) {
    return simulate(lower(graph, found, cluster, {}), CostModel(cluster)).step;
  };
  for (const std::string strategy : {"harp", "auto"}) {
    cluster = many;
    const Nanoseconds found = step(planned(request(strategy, 34)));
    cluster = one;
    EXPECT_EQ(found, step(planned(request(strategy, 34)))) << strategy;
  }
}

// An interrupt raised by the progress callback.
TEST_F(Planner, ExceptionOfProgressEndsPlanning) {
  struct Interrupted {};
  for (const std::string strategy : {"auto", "hap", "hap-even", "harp", "megatron"}) {
    Request asked = request(strategy, 64);
    size_t reports = 0;
    asked.listener.progress = [&](std::string_view, size_t, size_t) { ++reports; };
    (void)plan(asked);
    ASSERT_GT(reports, 0u) << strategy;
    for (size_t last = 1; last <= reports; ++last) {
      size_t now = 0;
      asked.listener.progress = [&](std::string_view, size_t, size_t) {
        if (++now == last) throw Interrupted();
      };
      EXPECT_THROW((void)plan(asked), Interrupted)
          << strategy << " at " << last << " of " << reports;
      EXPECT_EQ(now, last);
    }
  }
}

TEST(CutIntoMicrobatches, CoversAllRowsWithoutEmptyOnes) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{1, 1, 1}, {7, 0, 2}, {5, 4, 3}, {12}}) {
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    for (int64_t count = 1; count <= total; ++count) {
      const auto microbatches = cut_into_microbatches(rows, count);
      std::vector<int64_t> sums(rows.size(), 0), sizes;
      for (const Microbatch& microbatch : microbatches) {
        sizes.push_back(microbatch.rows);
        for (size_t d = 0; d < rows.size(); ++d) sums[d] += microbatch.lengths[d];
      }
      EXPECT_EQ(sums, rows);
      EXPECT_THAT(sizes, Each(::testing::AnyOf(total / count, (total + count - 1) / count)));
    }
  }
}

}  // namespace
}  // namespace medley
