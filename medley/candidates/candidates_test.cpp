// Tests the device mapping of pipelines: both mappings become plans, and the faster one by the
// simulator wins.

#include "medley/candidates/candidates.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/candidates/memory_ladder.h"
#include "medley/candidates/port_bounds.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Two nodes of two devices so fast that the link between nodes dominates; two pipelines of two
// stages on single devices.
class DeviceMappingTest : public ::testing::Test {
 protected:
  DeviceMappingTest()
      : graph(run_passes(parse_graph(LocalFiles().read("tests/data/deep.graph"), "deep.graph"))) {
    const DeviceKind kind{"kind", {}, {{DType::kF32, 1e13}}, 1e10, 1e13, 1e-8};
    cluster.pools = {{"a", 2, 2, kind, false, 0}};
    cluster.devices = list_devices(cluster.pools);
    cluster.networks = {{"bus", true, {}, 10e9, 1e-6, {}}, {"lan", false, {"a"}, 1e8, 1e-5, {}}};
  }

  Request asked(const CostModel& costs, const GraphAnalysis& analysis, int64_t rows) const {
    return {.graph = graph,
            .cluster = cluster,
            .costs = &costs,
            .strategy = "autohet",
            .global_batch = rows,
            .devices = {},
            .optimizer = {},
            .cache = {.analysis = &analysis}};
  }

  // Returns the best plan of both mappings, or of the given one.
  Plan best(int64_t rows, std::optional<Together> only = std::nullopt) const {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request request = asked(costs, analysis, rows);
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, {.per_block = 2});
    CandidateSet candidates(request, pools, synthesis);
    const int layers = static_cast<int>(synthesis.layers().layers.size());
    const PipelineCandidate pipeline{
        4,
        {{0, 2, 0, 1}, {2, layers, 0, 1}},
        std::vector<StageConfig>(2, {rows / 8, 4, 0, StageStyle::kBest}),
        rows / 2};
    PlanCandidate candidate{{pipeline, pipeline}};
    if (only) {
      candidate.together = *only;
      candidates.evaluate(candidate);
    } else {
      candidates.add({candidate});
      EXPECT_THAT(candidates.timed(), SizeIs(2));
      candidates.choose(1);
    }
    return std::get<Plan>(candidates.best());
  }

  // Checks that ports take at least `share` of each candidate's step, and at most all of it.
  void expect_ports_bound(const std::vector<std::vector<StageRange>>& chains,
                          int64_t rows,
                          double share) const {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request request = asked(costs, analysis, rows * static_cast<int64_t>(chains.size()));
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, {.per_block = 2});
    PlanCandidate candidate;
    for (const std::vector<StageRange>& stages : chains)
      candidate.pipelines.push_back(
          {4,
           stages,
           std::vector<StageConfig>(stages.size(), {rows / 4, 4, 0, StageStyle::kBest}),
           rows});
    for (const Together together : {Together::kNeighbours, Together::kSameLayers}) {
      candidate.together = together;
      CandidateSet candidates(request, pools, synthesis);
      candidates.evaluate(candidate);
      ASSERT_TRUE(std::holds_alternative<Plan>(candidates.best()));
      const Nanoseconds least = least_step(candidates.places(), candidate);
      EXPECT_LE(least, candidates.best_step());
      EXPECT_GE(least / candidates.best_step(), share);
    }
    if (chains.size() < 2) return;
    CandidateSet candidates(request, pools, synthesis);
    candidates.add({candidate});
    ASSERT_THAT(candidates.timed(), Not(IsEmpty()));
    for (const CandidateSet::Timed& each : candidates.timed())
      EXPECT_GE(each.time, least_step(candidates.places(), each.candidate));
  }

  Nanoseconds step(const Plan& plan) const {
    return simulate(lower(graph, plan, cluster, {}), CostModel(cluster)).step;
  }

  // Checks that the result is the faster of the two, and that they differ.
  void expect_best(const Plan& found, Together faster, Together slower, int64_t rows) const {
    EXPECT_EQ(found, best(rows, faster));
    EXPECT_LT(step(found), step(best(rows, slower)));
  }

  static std::vector<std::vector<std::string>> devices(const Pipeline& pipeline) {
    std::vector<std::vector<std::string>> all;
    for (const Stage& stage : pipeline.stages) all.push_back(stage.mesh.devices);
    return all;
  }

  Graph graph;
  Cluster cluster;
};

// 8 rows are 8 KiB at each cut, the gradients of a layer 256 KiB.
TEST_F(DeviceMappingTest, TheSameLayersAreTogetherWhereGradientsAreMore) {
  const Plan found = best(8);
  EXPECT_THAT(devices(found.pipelines.at(0)),
              ElementsAre(ElementsAre("a/0/0"), ElementsAre("a/1/0")));
  EXPECT_THAT(devices(found.pipelines.at(1)),
              ElementsAre(ElementsAre("a/0/1"), ElementsAre("a/1/1")));
  expect_best(found, Together::kSameLayers, Together::kNeighbours, 8);
}

// 8,192 rows are 8 MiB.
TEST_F(DeviceMappingTest, NeighboursAreTogetherWhereActivationsAreMore) {
  const Plan found = best(8192);
  EXPECT_THAT(devices(found.pipelines.at(0)),
              ElementsAre(ElementsAre("a/0/0"), ElementsAre("a/0/1")));
  EXPECT_THAT(devices(found.pipelines.at(1)),
              ElementsAre(ElementsAre("a/1/0"), ElementsAre("a/1/1")));
  expect_best(found, Together::kNeighbours, Together::kSameLayers, 8192);
}

// A node between two others receives activations and gradients through one port.
TEST_F(DeviceMappingTest, PortsBoundTheStep) {
  cluster.pools = {{"a", 3, 2, cluster.pools[0].kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  constexpr int kLayers = 5;
  const auto all_of = [&](std::vector<int> cuts, std::vector<int> devices) {
    std::vector<StageRange> stages;
    cuts.insert(cuts.begin(), 0);
    cuts.push_back(kLayers);
    for (size_t s = 0; s < devices.size(); ++s)
      stages.push_back({cuts[s], cuts[s + 1], 0, devices[s]});
    return stages;
  };
  // Stages are nodes, parts of nodes, or several nodes.
  expect_ports_bound({all_of({2, 4}, {2, 2, 2})}, 8192, 0.75);
  expect_ports_bound({all_of({3}, {4, 2})}, 8192, 0);
  expect_ports_bound({all_of({1, 2, 4}, {1, 1, 2, 2})}, 8192, 0);
  for (int cut = 1; cut < kLayers; ++cut)
    for (const int64_t rows : {8, 512, 8192}) {
      expect_ports_bound({all_of({cut}, {2, 2})}, rows, 0);
      expect_ports_bound({all_of({cut}, {1, 1}), all_of({cut}, {1, 1})}, rows, 0);
      expect_ports_bound({all_of({cut}, {1, 2}), all_of({kLayers - cut}, {2, 1})}, rows, 0);
    }
}

// Equal pipelines are in steady state equally long: few of their micro-batches are simulated.
TEST_F(DeviceMappingTest, StepsOfManyMicrobatchesAreThoseOfAllOfThem) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request request = asked(costs, analysis, 1024);
  const std::vector<DevicePool> pools = pools_of(request);
  StageSynthesis synthesis(request, {.per_block = 2});
  const PipelineCandidate one{64,
                              {{0, 2, 0, 1}, {2, 5, 0, 1}},
                              std::vector<StageConfig>(2, {512 / 64, 64, 0, StageStyle::kBest}),
                              512};
  for (const Together together : {Together::kNeighbours, Together::kSameLayers}) {
    CandidateSet candidates(request, pools, synthesis);
    candidates.evaluate({{one, one}, together});
    const Nanoseconds whole = step(std::get<Plan>(candidates.best()));
    EXPECT_NEAR(candidates.best_step() / whole, 1, 1e-3);
  }
}

// A stage with room for two micro-batches delays the next one, which is far. Recomputation makes
// room for more. Equal pipelines stay equal.
TEST_F(DeviceMappingTest, StagesGetRoomForWhatTheirScheduleWants) {
  cluster.networks[1].latency = 20e-3;
  const StageConfig config{512, 16, 0, StageStyle::kBest};
  const std::vector<StageRange> stages{{0, 2, 0, 1}, {2, 5, 0, 1}};
  const PipelineCandidate one{16, stages, {config, config}, 8192};
  PlanCandidate candidate{{one, one}, Together::kSameLayers};
  for (const bool is_tight : {false, true}) {
    const CostModel costs(cluster);
    const GraphAnalysis analysis = analyse(graph, {});
    const Request request = asked(costs, analysis, 16384);
    const std::vector<DevicePool> pools = pools_of(request);
    StageSynthesis synthesis(request, {.per_block = 2});
    CandidateSet candidates(request, pools, synthesis);
    CandidateTrials& trials = candidates.trials();
    const auto time = [&] { return trials.time_of(candidate, *trials.exact_stages(candidate)); };
    const PlanCandidate before = candidate;
    ASSERT_TRUE(trials.exact_stages(candidate));
    const Nanoseconds first = time();
    make_more_room(trials, candidate);
    EXPECT_EQ(candidate.pipelines[0], candidate.pipelines[1]);
    EXPECT_EQ(candidate != before, is_tight);
    if (is_tight) {
      EXPECT_LT(time(), first);
    }
    const auto needed = [&](int stage, int in_flight) {
      const StageRange& range = stages[at(stage)];
      const StageOption& option = synthesis.whole({range.begin, range.end, {{0}}, config})->option;
      return option.persistent + option.transient + option.saved * in_flight;
    };
    const Bytes least = std::max(needed(0, 2), needed(1, 1));
    cluster.pools[0].kind.memory_bytes = static_cast<double>(
        (least + held_while_summed(candidates.places().gradients, stages[1])).value);
  }
}

// Values recomputed for a weight gradient are not kept until a deferred call.
TEST_F(DeviceMappingTest, RecomputedStagesDeferNoWeights) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  const Request request = asked(costs, analysis, 64);
  StageSynthesis synthesis(request, {.per_block = 2});
  StageConfig config{16, 4, 0, StageStyle::kBest};
  const auto weights = [&] { return synthesis.whole({1, 4, {{0}}, config})->option.weights; };
  EXPECT_GT(weights(), Nanoseconds{});
  for (const std::string_view how : {kRecompute[1], kRecompute[2]}) {
    config.recompute = how;
    EXPECT_EQ(weights(), Nanoseconds{}) << how;
  }
}

}  // namespace
}  // namespace medley
