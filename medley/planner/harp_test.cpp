#include "medley/planner/harp.h"
#include "medley/base/at.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "medley/base/files.h"
#include "medley/candidates/candidates.h"
#include "medley/candidates/stage_options.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/planner/megatron.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/testing/sample_clusters.h"

namespace medley {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::SizeIs;

// Two pools, the second half as fast. One micro-batch of the residual of four rows takes about as
// long on their link as a block.
class HarpTest : public ::testing::Test {
 protected:
  HarpTest()
      : graph(run_passes(
            parse_graph(LocalFiles().read("python/tests/golden/gpt.graph"), "gpt.graph"))) {}

  static Cluster two_pools(int fast, int slow, double memory = 1e9, double bandwidth = 50e6) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e10}};
    kind.memory_bandwidth = 1e10;
    kind.launch_latency = 1e-7;
    kind.memory_bytes = memory;
    return two_speeds(fast,
                      slow,
                      kind,
                      {{"fabric", true, {}, 10e9, 1e-6, {}},
                       {"lan", false, {"fast", "slow"}, bandwidth, 1e-4, {}}});
  }

  // Returns two nodes of two devices.
  static Cluster nodes(double bandwidth) {
    Cluster cluster = two_pools(2, 1, 1e9, bandwidth);
    cluster.pools = {{"node", 2, 2, cluster.pools[0].kind, false, 0}};
    cluster.networks[1].connects = {"node"};
    cluster.devices = list_devices(cluster.pools);
    return cluster;
  }

  static Cluster one_device(Cluster cluster) {
    cluster.devices.pop_back();
    cluster.pools.pop_back();
    cluster.networks.pop_back();
    return cluster;
  }

  // Returns a request with all that plan() fills in.
  Request request(const Cluster& cluster,
                  const CostModel& costs,
                  const GraphAnalysis& analysis,
                  int64_t batch,
                  int64_t microbatches = 0) const {
    return {.graph = graph,
            .cluster = cluster,
            .costs = &costs,
            .strategy = "harp",
            .global_batch = batch,
            .microbatches = microbatches,
            .devices = {},
            .optimizer = {},
            .cache = {.analysis = &analysis}};
  }

  Outcome outcome(const Cluster& cluster,
                  const std::string& strategy,
                  int64_t batch,
                  int64_t microbatches = 0,
                  std::vector<std::string> devices = {}) const {
    return plan({.graph = graph,
                 .cluster = cluster,
                 .strategy = strategy,
                 .global_batch = batch,
                 .microbatches = microbatches,
                 .devices = std::move(devices),
                 .optimizer = {}});
  }

  Plan planned(const Cluster& cluster,
               const std::string& strategy,
               int64_t batch,
               int64_t microbatches = 0,
               std::vector<std::string> devices = {}) const {
    const Outcome found = outcome(cluster, strategy, batch, microbatches, std::move(devices));
    if (const auto* no = std::get_if<Infeasible>(&found)) {
      ADD_FAILURE() << no->reason;
      return {};
    }
    verify(std::get<Plan>(found), graph, cluster);
    return std::get<Plan>(found);
  }

  Nanoseconds step(const Plan& plan, const Cluster& cluster) const {
    return simulate(lower(graph, plan, cluster, {}), CostModel(cluster)).step;
  }

  Graph graph;
};

TEST_F(HarpTest, CutsOverAThinLinkAndUsesBothPools) {
  const Cluster cluster = two_pools(2, 2, 1e9, 20e6);
  const Plan found = planned(cluster, "harp", 64);
  const Pipeline& pipeline = found.pipelines[0];
  EXPECT_GE(pipeline.stages.size(), 2u);
  EXPECT_EQ(pipeline.schedule, "h1f1b");
  EXPECT_THAT(pipeline.in_flight, SizeIs(pipeline.stages.size()));
  std::set<std::string> used;
  for (const Stage& stage : pipeline.stages)
    for (const std::string& device : stage.mesh.devices) used.insert(device.substr(0, 4));
  EXPECT_THAT(used, SizeIs(2));
  for (const char* other : {"data-parallel-even", "data-parallel-proportional", "megatron"})
    EXPECT_LT(step(found, cluster), step(planned(cluster, other, 64), cluster)) << other;
}

// The head is tied to the embedding: stages on both sides of the link exchange its gradient.
TEST_F(HarpTest, IsNeverSlowerThanWithoutTheOtherPool) {
  for (const double bandwidth : {20e6, 50e6}) {
    const Cluster cluster = two_pools(4, 4, 1e9, bandwidth);
    const Plan all = planned(cluster, "harp", 64);
    std::vector<std::string> fast;
    for (int i = 0; i < 4; ++i) fast.push_back(fmt::format("fast/0/{}", i));
    const Plan one = planned(cluster, "harp", 64, 0, fast);
    EXPECT_LE(step(all, cluster).value, step(one, cluster).value * 101 / 100) << bandwidth;
  }
}

// If that link is slow and the one of activations is not, both ends are on one pool.
TEST_F(HarpTest, UsesAPoolAtBothEndsThatShareParameters) {
  const Plan found = planned(two_pools(4, 4, 1e9, 50e6), "harp", 64);
  std::vector<std::string> pools;
  for (const Stage& stage : found.pipelines[0].stages)
    pools.push_back(stage.mesh.devices[0].substr(0, 4));
  EXPECT_THAT(pools, ElementsAre("slow", "fast", "slow"));
}

// A fast device and two slow ones are near, another slow one is far. With few rows a pipeline of
// four stages has a large bubble, and the three are faster as one stage.
TEST_F(HarpTest, PutsAStageOnTwoKinds) {
  Cluster cluster = two_pools(1, 2);
  cluster.pools.push_back({"far", 1, 1, cluster.pools[1].kind, false, 0});
  cluster.networks = {{"near", false, {"fast", "slow"}, 10e9, 1e-6, {}},
                      {"lan", false, {"fast", "slow", "far"}, 50e6, 1e-4, {}}};
  cluster.devices = list_devices(cluster.pools);
  const Plan found = planned(cluster, "harp", 16, 2);
  const auto kinds = [](const Stage& stage) {
    std::set<std::string> names;
    for (const std::string& device : stage.mesh.devices)
      names.insert(device.substr(0, device.find('/')));
    return names.size();
  };
  const std::vector<Stage>& stages = found.pipelines[0].stages;
  ASSERT_TRUE(std::ranges::any_of(stages, [&](const Stage& stage) { return kinds(stage) == 2; }));
  verify(found, graph, cluster);
  // Its bound holds for all searches, with and without such stages.
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Request asked = request(cluster, costs, analysis, 16, 2);
  int64_t least = found.bound->step_ns;
  int searches = 0;
  asked.listener.proved = [&](Nanoseconds proved) {
    least = std::min(least, proved.value);
    ++searches;
  };
  EXPECT_EQ(std::get<Plan>(harp(asked)).bound->least_ns, least);
  EXPECT_GT(searches, 1);
}

TEST_F(HarpTest, IsTheSameEveryTime) {
  const Cluster cluster = two_pools(2, 2);
  EXPECT_EQ(print(planned(cluster, "harp", 32)), print(planned(cluster, "harp", 32)));
}

// Nodes are equal, so both orders take equally long.
TEST_F(HarpTest, AddsAllCandidatesThatTakeAsLong) {
  Cluster cluster = two_pools(1, 1);
  cluster.pools[1].kind = cluster.pools[0].kind;
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request asked = request(cluster, costs, analysis, 32, 8);
  const std::vector<DevicePool> pools = pools_of(asked);
  StageSynthesis synthesis(asked, {.per_block = 2});
  CandidateSet candidates(asked, pools, synthesis);
  const int layers = static_cast<int>(synthesis.layers().layers.size());
  const std::vector<StageConfig> configs(2, {4, 8, 0, StageStyle::kBest});
  const PlanCandidate one{{{8, {{0, 2, 0, 1}, {2, layers, 1, 1}}, configs}}};
  const PlanCandidate other{{{8, {{0, 2, 1, 1}, {2, layers, 0, 1}}, configs}}};
  for (const PlanCandidate& each : {one, other, one}) candidates.add({each});
  ASSERT_THAT(candidates.timed(), SizeIs(2));
  EXPECT_EQ(candidates.timed()[0].time, candidates.timed()[1].time);
  EXPECT_EQ(candidates.timed()[0].candidate, one);
  EXPECT_EQ(candidates.timed()[1].candidate, other);
}

// Returns every cut of the layers between the two devices, in both orders, and each device alone.
std::vector<std::vector<StageRange>> all_cuts(int layers) {
  std::vector<std::vector<StageRange>> candidates;
  for (const int first : {0, 1}) {
    candidates.push_back({{0, layers, first, 1}});
    for (int cut = 1; cut < layers; ++cut)
      candidates.push_back({{0, cut, first, 1}, {cut, layers, 1 - first, 1}});
  }
  return candidates;
}

class OutlineTest : public HarpTest {
 protected:
  static constexpr int64_t kBatch = 32;

  // Returns the best step of all_cuts(), over these numbers of micro-batches.
  Nanoseconds best_outline(const Cluster& cluster, const std::vector<int64_t>& counts) const {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request asked = request(cluster, costs, analysis, kBatch);
    const std::vector<DevicePool> pools = pools_of(asked);
    StageSynthesis synthesis(asked, {.per_block = 2});
    CandidateSet all(asked, pools, synthesis);
    for (const int64_t count : counts) {
      const StageConfig config{kBatch / count, count, 0, StageStyle::kBest};
      for (const auto& stages : all_cuts(static_cast<int>(synthesis.layers().layers.size())))
        all.evaluate({{{count, stages, std::vector<StageConfig>(stages.size(), config)}}});
    }
    return step(std::get<Plan>(all.best()), cluster);
  }

  // Returns the step of harp(); 0 micro-batches: it chooses.
  Nanoseconds found(const Cluster& cluster, int64_t microbatches) const {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request asked = request(cluster, costs, analysis, kBatch, microbatches);
    return step(std::get<Plan>(harp(asked)), cluster);
  }
};

TEST_F(OutlineTest, IsAsGoodAsTheBestOfAllOutlines) {
  for (const double bandwidth : {5e6, 50e6, 5e9}) {
    const Cluster cluster = two_pools(1, 1, 1e9, bandwidth);
    EXPECT_LE(found(cluster, 8).value, best_outline(cluster, {8}).value * 101 / 100) << bandwidth;
  }
}

// harp also chooses the number of micro-batches and the order of pools.
TEST_F(OutlineTest, IsNearlyAsGoodAsTheBestOutlineOfAnyNumberOfMicrobatches) {
  for (const double bandwidth : {5e6, 10e6, 50e6, 5e9}) {
    const Cluster cluster = two_pools(1, 1, 1e9, bandwidth);
    const Nanoseconds best = best_outline(cluster, {1, 2, 4, 8, 16, 32});
    EXPECT_LE(found(cluster, 0).value, best.value * 102 / 100) << bandwidth;
  }
}

// Not all counts are tried; none of them is better than the result.
TEST_F(HarpTest, FindsTheNumberOfMicrobatches) {
  for (const double bandwidth : {5e6, 50e6, 5e9}) {
    const Cluster cluster = two_pools(2, 1, 1e9, bandwidth);
    Nanoseconds best{std::numeric_limits<int64_t>::max()};
    for (int64_t count = 1; count <= 64; count *= 2)
      best = std::min(best, step(planned(cluster, "harp", 64, count), cluster));
    EXPECT_LE(step(planned(cluster, "harp", 64), cluster).value, best.value * 101 / 100)
        << bandwidth;
  }
}

TEST_F(HarpTest, SaysWhatDoesNotFit) {
  const Outcome found = outcome(two_pools(1, 1, 1e5), "harp", 8);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(found));
  EXPECT_THAT(std::get<Infeasible>(found).reason, HasSubstr("more than it has"));
}

// The model fits on two devices, not on one. A step takes hours, but a micro-batch of a stage less
// than kLongest.
TEST_F(HarpTest, FindsChainsOfLongSteps) {
  Cluster cluster = two_pools(2, 2);
  const double whole = static_cast<double>(step(planned(cluster, "harp", 64), cluster).value);
  for (const double longer : {1.5, 24.0}) {
    const double slower = longer * static_cast<double>(kLongest.value) / whole;
    Cluster slow = two_pools(2, 2, 1e9, 50e6 / slower);
    for (auto& pool : slow.pools) {
      for (auto& [dtype, rate] : pool.kind.sustained) rate /= slower;
      pool.kind.memory_bandwidth /= slower;
      pool.kind.launch_latency *= slower;
    }
    for (auto& network : slow.networks) network.latency *= slower;
    slow.networks[0].bandwidth /= slower;
    for (const char* strategy : {"harp", "autohet", "megatron", "auto"}) {
      const Plan found = planned(slow, strategy, 64);
      EXPECT_GT(step(found, slow), kLongest) << strategy;
    }
  }
}

TEST_F(HarpTest, StaysWithinTheMemoryOfEachDevice) {
  const GraphAnalysis analysis = analyse(graph, {});
  const Cluster roomy = two_pools(1, 1);
  double memory = 0;
  for (const auto& use : memory_uses(lower(graph, planned(roomy, "harp", 8, 8), roomy, {})))
    memory = std::max(memory, static_cast<double>(use.use.peak));
  const Cluster tight = two_pools(1, 1, memory * 0.95);
  const Plan found = planned(tight, "harp", 8, 8);
  for (const auto& [stage, device, use] : memory_uses(lower(graph, found, tight, {})))
    EXPECT_LE(static_cast<double>(use.peak), tight.kind(device).memory_bytes) << stage;
}

// Single devices, so only recomputation saves memory: with one micro-batch in flight no candidate
// that keeps everything fits. harp's plan is near the best of all candidates and recomputations of
// their stages.
TEST_F(HarpTest, RecomputesWhereNothingElseFits) {
  const GraphAnalysis analysis = analyse(graph, {});
  const StageConfig keeps{8, 8, 0, StageStyle::kBest};
  double least = 1e9;
  {
    const Cluster roomy = two_pools(1, 1);
    const CostModel costs(roomy);
    const Request asked = request(roomy, costs, analysis, 64, 8);
    const std::vector<DevicePool> pools = pools_of(asked);
    StageSynthesis synthesis(asked, {.per_block = 2});
    for (const auto& stages : all_cuts(static_cast<int>(synthesis.layers().layers.size()))) {
      CandidateSet one(asked, pools, synthesis);
      one.evaluate({{{8, stages, std::vector<StageConfig>(stages.size(), keeps)}}});
      Plan plan = std::get<Plan>(one.best());
      plan.pipelines[0].in_flight.assign(stages.size() > 1 ? stages.size() : 0, 1);
      double most = 0;
      for (const DeviceMemory& each : memory_uses(lower(analysis, plan, roomy)))
        most = std::max(most, static_cast<double>(each.use.peak));
      least = std::min(least, most);
    }
  }
  const Cluster tight = two_pools(1, 1, 0.9 * least);
  const CostModel costs(tight);
  const Request asked = request(tight, costs, analysis, 64, 8);
  const Plan found = planned(tight, "harp", 64, 8);
  EXPECT_THAT(found.pipelines[0].stages, Contains(Field(&Stage::recompute, Ne("none"))));
  for (const DeviceMemory& each : memory_uses(lower(graph, found, tight, {})))
    EXPECT_LE(static_cast<double>(each.use.peak), 0.9 * least) << each.stage;
  const std::vector<DevicePool> pools = pools_of(asked);
  StageSynthesis synthesis(asked, {.per_block = 2});
  CandidateSet all(asked, pools, synthesis);
  all.trials().keep_backward_whole();  // no memory for deferred weight gradients
  for (const auto& stages : all_cuts(static_cast<int>(synthesis.layers().layers.size())))
    for (const std::string_view a : kRecompute)
      for (const std::string_view b : kRecompute) {
        std::vector<StageConfig> configs(stages.size(), keeps);
        configs.front().recompute = a;
        configs.back().recompute = b;
        for (StageConfig& config : configs)
          if (config.recompute == "blocks") config.in_flight = 2;
        all.evaluate({{{8, stages, configs}}});
      }
  // Sums over layers slightly overestimate the memory of whole stages.
  EXPECT_LE(step(found, tight).value, step(std::get<Plan>(all.best()), tight).value * 5 / 4);
}

TEST_F(HarpTest, MegatronRecomputesWhereNothingElseFits) {
  const Cluster roomy = one_device(two_pools(1, 1));
  const auto most = [&](const Plan& plan) {
    double bytes = 0;
    for (const DeviceMemory& each : memory_uses(lower(graph, plan, roomy, {})))
      bytes = std::max(bytes, static_cast<double>(each.use.peak));
    return bytes;
  };
  const double memory = 0.8 * most(planned(roomy, "megatron", 64, 8));
  const Cluster tight = one_device(two_pools(1, 1, memory));
  const Plan found = planned(tight, "megatron", 64, 8);
  EXPECT_THAT(found.pipelines[0].stages, Contains(Field(&Stage::recompute, Ne("none"))));
  EXPECT_LE(most(found), memory);
}

TEST_F(HarpTest, CrossSampleModelHasOneMicrobatch) {
  const Cluster cluster = two_pools(1, 1);
  const CostModel costs(cluster);
  GraphAnalysis analysis = analyse(graph, {});
  analysis.coupling = "rows meet in norm";
  Request asked = request(cluster, costs, analysis, 8, 4);
  for (const auto& strategy : {harp, megatron}) {
    const Outcome none = strategy(asked);
    ASSERT_TRUE(std::holds_alternative<Infeasible>(none));
    EXPECT_THAT(std::get<Infeasible>(none).reason, HasSubstr("meet in norm"));
  }
  asked.microbatches = 0;
  const GraphAnalysis apart = analyse(graph, {});
  EXPECT_EQ(microbatch_counts(asked), std::vector<int64_t>{1});
  asked.cache.analysis = &apart;
  EXPECT_EQ(microbatch_counts(asked), (std::vector<int64_t>{1, 2, 4, 8}));
  // Counts have equally many rows each, which 2, 4, 8 devices divide evenly.
  asked.global_batch = 100;
  EXPECT_EQ(microbatch_counts(asked), (std::vector<int64_t>{1, 2, 4, 7, 13, 25, 50, 100}));
  asked.global_batch = 5000;
  EXPECT_EQ(microbatch_counts(asked).back(), 625);
  EXPECT_EQ(microbatch_counts(asked, 4).back(), 2500);
  asked.global_batch = 1;
  EXPECT_EQ(microbatch_counts(asked), std::vector<int64_t>{1});
}

TEST_F(HarpTest, UsesOneDeviceIfThereIsOne) {
  const Cluster cluster = one_device(two_pools(1, 1));
  const Plan found = planned(cluster, "harp", 8);
  EXPECT_THAT(found.pipelines[0].stages, SizeIs(1));
}

TEST_F(HarpTest, MegatronIsUniform) {
  const Cluster cluster = two_pools(2, 2);
  const Plan found = planned(cluster, "megatron", 64);
  const auto& stages = found.pipelines[0].stages;
  for (const Stage& stage : stages) EXPECT_THAT(stage.mesh.devices, SizeIs(4 / stages.size()));
  for (const Part& part : found.parts) ADD_FAILURE() << "part " << part.name;
}

// A range is the sum of its layers, each synthesised once per structure. With one micro-batch
// stages gain nothing. The divisions of nodes and of their devices depend on each other.
TEST_F(HarpTest, DecidesOverNodesAndDevicesAtOnce) {
  const Cluster cluster = nodes(200e6);
  const Plan found = planned(cluster, "harp", 8, 1);
  EXPECT_TRUE(std::ranges::any_of(found.pipelines[0].stages[0].ops, [](const auto& op) {
    return !op.second.starts_with("*") && op.second.find(" x ") != std::string::npos;
  }));
  EXPECT_LE(step(found, cluster), step(planned(cluster, "hap", 8, 1), cluster));
}

// Over such a low-bandwidth link a pool alone is fastest; its chains are searched less closely than
// one mesh.
TEST_F(HarpTest, AutoIsNoSlowerThanOneMeshOfAnyPool) {
  for (const int64_t rows : {4, 12}) {
    const Cluster cluster = two_pools(4, 2, 1e9, 1e5);
    std::map<std::string, std::vector<std::string>> pools;
    for (const Device& device : cluster.devices)
      pools[cluster.pools[at(device.pool)].name].push_back(device.name);
    const Nanoseconds found = step(planned(cluster, "auto", rows), cluster);
    for (const auto& [name, devices] : pools)
      EXPECT_LE(found, step(planned(cluster, "hap", rows, 0, devices), cluster))
          << name << ", " << rows << " rows";
  }
}

// Values from another stage are redistributed once for all readers, also if these read views.
// Otherwise the search divides ops for no gain.
TEST_F(HarpTest, StagesAreNoSlowerThanWithRowsAlone) {
  for (const double bandwidth : {1e6, 10e6, 100e6}) {
    const Cluster cluster = nodes(bandwidth);
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request asked = request(cluster, costs, analysis, 32, 4);
    StageSynthesis synthesis(asked, {.per_block = 2});
    const auto layers = static_cast<int>(synthesis.layers().layers.size());
    const auto step = [&](int begin, int end, StageStyle style) {
      const StageQuery query{begin, end, {{0, 1, 2, 3}}, {8, 4, 0, style}};
      const StageOption& option = synthesis.whole(query)->option;
      return (option.forward + option.backward) * int64_t{4} + option.update;
    };
    for (const auto& [begin, end] : {std::pair{0, 2}, {1, 3}, {2, layers}})
      EXPECT_LE(step(begin, end, StageStyle::kBest).value,
                step(begin, end, StageStyle::kData).value * 101 / 100)
          << bandwidth << ", layers " << begin << " to " << end;
  }
}

// Blocks are equal except for names: the solution of one is reused for the other.
TEST_F(HarpTest, EqualStagesAreSolvedOnce) {
  const Cluster cluster = two_pools(4, 1);
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request asked = request(cluster, costs, analysis, 64);
  StageSynthesis both(asked, {.per_block = 2}), second(asked, {.per_block = 2});
  for (const StageMesh& mesh : {StageMesh{{0}}, StageMesh{{0, 1, 2, 3}}})
    for (const StageStyle style : {StageStyle::kBest, StageStyle::kTensor, StageStyle::kData})
      for (const auto& [recompute, in_flight] : {std::pair{"none", 1}, {"all", 1}, {"blocks", 8}}) {
        const StageConfig config{8, 8, 0, style, recompute, in_flight};
        both.whole({1, 3, mesh, config});
        const int before = both.num_syntheses();
        const std::optional<StageSolution>& said = both.whole({3, 5, mesh, config});
        EXPECT_EQ(both.num_syntheses(), before);
        const std::optional<StageSolution>& found = second.whole({3, 5, mesh, config});
        ASSERT_TRUE(said && found);
        EXPECT_EQ(said->stage, found->stage);
        EXPECT_EQ(said->by_rows, found->by_rows);
        EXPECT_EQ(said->option, found->option);
        // With the head it is a different stage.
        both.whole({4, 6, mesh, config});
        EXPECT_GT(both.num_syntheses(), before);
      }
}

TEST_F(HarpTest, RangesAreSumsOfTheirLayers) {
  const Cluster cluster = two_pools(4, 1);
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request asked = request(cluster, costs, analysis, 64);
  StageSynthesis synthesis(asked, {.per_block = 2});
  const StageConfig config{8, 8, 0, StageStyle::kBest};
  for (const StageMesh& mesh : {StageMesh{{0}}, StageMesh{{0, 1, 2, 3}}}) {
    const int before = synthesis.num_syntheses();
    const std::vector<StageOption> sum = synthesis.options(1, 5, synthesis.offers(mesh, config));
    ASSERT_FALSE(sum.empty());
    // One before the blocks, two of a block, and the head's.
    EXPECT_EQ(synthesis.num_syntheses() - before, 4);
    const StageOption whole = synthesis.whole({1, 5, mesh, config})->option;
    const auto close = [](auto a, auto b, double share) {
      EXPECT_NEAR(static_cast<double>(a.value),
                  static_cast<double>(b.value),
                  share * static_cast<double>(b.value));
    };
    close(sum[0].forward + sum[0].backward, whole.forward + whole.backward, 0.1);
    close(sum[0].persistent, whole.persistent, 0.1);
    close(sum[0].saved, whole.saved, 0.1);
  }
}

// Recomputed ranges are sums, too; with plenty of memory nothing is recomputed.
TEST_F(HarpTest, RangesThatRecomputeAreSumsOfTheirLayers) {
  const GraphAnalysis analysis = analyse(graph, {});
  const StageConfig config{8, 8, 0, StageStyle::kBest};
  const auto options = [&](double memory, const auto& look) {
    const Cluster cluster = two_pools(1, 1, memory);
    const CostModel costs(cluster);
    const Request asked = request(cluster, costs, analysis, 64);
    StageSynthesis synthesis(asked, {.per_block = 2});
    look(synthesis, synthesis.options(1, 5, synthesis.offers({{0}}, config)));
  };
  options(1e9, [&](StageSynthesis&, const std::vector<StageOption>& all) {
    EXPECT_THAT(all, SizeIs(1));
  });
  options(1e6, [&](StageSynthesis& synthesis, const std::vector<StageOption>& all) {
    ASSERT_THAT(all, SizeIs(3));
    std::set<std::string_view> seen;
    for (const StageOption& sum : all) {
      const StageConfig how = StageSynthesis::config_of(sum, config, 8);
      seen.insert(how.recompute);
      const StageOption whole = synthesis.whole({1, 5, {{0}}, how})->option;
      const auto close = [&](auto a, auto b, double share, const char* what) {
        EXPECT_NEAR(static_cast<double>(a.value),
                    static_cast<double>(b.value),
                    share * static_cast<double>(b.value))
            << how.recompute << ": " << what;
      };
      close(sum.forward + sum.backward, whole.forward + whole.backward, 0.1, "time");
      close(sum.persistent, whole.persistent, 0.1, "persistent");
      // As wholes, blocks may exceed their layers if that needs less memory.
      const auto needed = [](const StageOption& o) { return o.transient + o.saved * 8; };
      EXPECT_LE(needed(whole), needed(sum) + Bytes{1 << 16}) << how.recompute;
      if (how.recompute == "blocks") continue;
      close(sum.saved, whole.saved, 0.1, "saved");
      close(sum.transient, whole.transient, 0.1, "transient");
    }
    EXPECT_THAT(seen, SizeIs(3));
  });
}

}  // namespace
}  // namespace medley
