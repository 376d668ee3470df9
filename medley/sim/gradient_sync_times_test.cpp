#include "medley/sim/gradient_sync_times.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns devices of equal nodes; each does `flops` per second.
Cluster nodes(int count, double flops, double bandwidth) {
  Cluster cluster;
  const DeviceKind kind{"kind", {}, {{DType::kF32, flops}}, 1e12, 1e15, 1e-9};
  cluster.pools = {{"a", count, 1, kind, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a"}, bandwidth, 1e-6, {}}};
  return cluster;
}

// Returns stages on a device each, beginning with these layers of deep.graph.
Pipeline pipeline_of(int first_device, const std::vector<int>& layers, int64_t rows, int count) {
  Pipeline pipeline;
  pipeline.microbatches.assign(at(count), {rows, {}});
  for (size_t s = 0; s < layers.size(); ++s) {
    Stage& stage = pipeline.stages.emplace_back();
    stage.mesh = {{"x"}, {1}, {"a/" + std::to_string(first_device + static_cast<int>(s)) + "/0"}};
    if (s > 0) stage.first = "layers." + std::to_string(layers[s]) + "/mm#0";
  }
  if (layers.size() > 1) pipeline.in_flight.assign(layers.size(), count);
  return pipeline;
}

struct SyncedValue {
  Program program;
  Simulation simulation;
  std::vector<GradientSyncTimes> syncs;
};

SyncedValue run(const Graph& graph, const Plan& plan, const Cluster& cluster) {
  verify(plan, graph, cluster);
  SyncedValue result{lower(graph, plan, cluster, {}), {}, {}};
  const CostModel costs(cluster);
  result.simulation = simulate(result.program, costs, {.syncs = true});
  result.syncs = gradient_sync_times(result.program, costs, result.simulation);
  return result;
}

class GradientSyncTimesTest : public ::testing::Test {
 protected:
  static Graph read(const char* path) {
    return run_passes(parse_graph(LocalFiles().read(path), path));
  }

  SyncedValue run_deep(std::vector<Pipeline> pipelines, const Cluster& cluster) const {
    Plan plan;
    plan.pipelines = std::move(pipelines);
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Microbatch& microbatch : pipeline.microbatches)
        plan.global_batch += microbatch.rows;
    return run(deep, plan, cluster);
  }

  const Graph deep = read("tests/data/deep.graph");
};

// Two equal pipelines: gradient syncs of later layers overlap the first stages' backward; those of
// the first stages are exposed.
TEST_F(GradientSyncTimesTest, TheFirstStagesHideTheLaterOnes) {
  const SyncedValue found = run_deep(
      {pipeline_of(0, {0, 2}, 100, 4), pipeline_of(2, {0, 2}, 100, 4)}, nodes(4, 1e8, 1e9));
  ASSERT_EQ(found.syncs.size(), 2u);
  const GradientSyncTimes &later = found.syncs[0], &first = found.syncs[1];
  EXPECT_THAT(later.stages, ElementsAre(1, 3));
  EXPECT_THAT(later.overlaps, ElementsAre(0, 2));
  EXPECT_EQ(later.overlapped, later.ends - later.begins);
  EXPECT_LT(later.ends - later.begins, later.cool_down);
  EXPECT_EQ(later.bytes, 4 * (2 * 256 * 257 + 16 * 257));
  EXPECT_THAT(first.stages, ElementsAre(0, 2));
  EXPECT_THAT(first.overlaps, IsEmpty());
  EXPECT_EQ(first.overlapped, Nanoseconds{});
  EXPECT_EQ(first.ends - first.begins, first.alone);
}

// No other device is slower, so all of its idle time is for the other pipeline: until its last
// backward, and for the gradient sync.
TEST_F(GradientSyncTimesTest, AFasterPipelineWaitsForTheOther) {
  const SyncedValue found =
      run_deep({pipeline_of(0, {0}, 50, 1), pipeline_of(1, {0}, 200, 1)}, nodes(2, 1e8, 1e9));
  const SimulatedDevice &fast = found.simulation.devices[0], &slow = found.simulation.devices[1];
  EXPECT_GT(fast.others, (slow.computes - fast.computes) * 9 / 10);
  EXPECT_LE(fast.others, fast.idles);
  EXPECT_LT(slow.others, fast.others / 10);
}

TEST_F(GradientSyncTimesTest, OnePipelineWaitsForNoOther) {
  const SyncedValue found = run_deep({pipeline_of(0, {0, 1, 3}, 100, 4)}, nodes(3, 1e8, 1e9));
  EXPECT_THAT(found.syncs, IsEmpty());
  for (const SimulatedDevice& device : found.simulation.devices)
    EXPECT_EQ(device.others, Nanoseconds{});
}

// Two pipelines of up to four stages, cut anywhere, each on its own nodes, with links of many
// speeds. Every gradient sync with enough time is overlapped.
TEST_F(GradientSyncTimesTest, HidesWhatIsShorterThanTheCoolDown) {
  const std::vector<std::vector<int>> cuts = {
      {0}, {0, 1}, {0, 2}, {0, 3}, {0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {0, 1, 2, 3}};
  Nanoseconds takes, overlapped;
  int count = 0, all = 0;
  for (const double bandwidth : {2e7, 1e8, 1e9})
    for (const std::vector<int>& one : cuts)
      for (const std::vector<int>& other : cuts) {
        const SyncedValue found = run_deep(
            {pipeline_of(0, one, 100, 8), pipeline_of(static_cast<int>(one.size()), other, 100, 8)},
            nodes(8, 1e9, bandwidth));
        for (const SimulatedDevice& device : found.simulation.devices)
          EXPECT_LE(device.others, device.idles);
        for (const GradientSyncTimes& sync : found.syncs) {
          EXPECT_LE(sync.overlapped, sync.ends - sync.begins);
          ++all;
          if (sync.alone > sync.cool_down) continue;
          takes += sync.ends - sync.begins;
          overlapped += sync.overlapped;
          ++count;
        }
      }
  EXPECT_GT(count, all / 3);
  EXPECT_GE(overlapped / takes, 0.9) << count << " of " << all << " gradient syncs";
  RecordProperty("overlapped_percent", static_cast<int>(100 * (overlapped / takes)));
}

// Each stage shares layers with two of the other pipeline, except at the ends. They do not form a
// chain of waits, but sum with one first and then with the other.
TEST_F(GradientSyncTimesTest, StagesDoNotWaitForEachOtherInARow) {
  const SyncedValue found = run_deep(
      {pipeline_of(0, {0, 2}, 1, 1), pipeline_of(2, {0, 1, 3}, 1, 1)}, nodes(5, 1e12, 1e6));
  ASSERT_EQ(found.syncs.size(), 4u);
  Nanoseconds begins = found.syncs[0].begins, ends;
  std::map<int, Nanoseconds> busy;  // [stage]
  for (const GradientSyncTimes& sync : found.syncs) {
    begins = std::min(begins, sync.begins);
    ends = std::max(ends, sync.ends);
    for (const int stage : sync.stages) busy[stage] += sync.alone;
  }
  Nanoseconds most;
  for (const auto& [stage, time] : busy) most = std::max(most, time);
  // A chain of waits would take at least twice the busiest stage's sums.
  EXPECT_LT((ends - begins) / most, 1.5);
}

}  // namespace
}  // namespace medley
