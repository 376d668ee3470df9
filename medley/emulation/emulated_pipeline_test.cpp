// Pipelines under the decorators: real lowered programs, with the null executor and the in-process
// transport inside. sim/agreement_test.cpp compares the times with the simulation.

#include <gmock/gmock.h>

#include <numeric>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/emulation/sample_run.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"
#include "medley/plan/plan.h"

namespace medley {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Returns one device per node; every other one at half speed.
Cluster cluster_of(int num_devices, double memory_bytes = 1e9) {
  Cluster cluster;
  const DeviceKind full{"full", {}, {{DType::kF32, 1e10}}, memory_bytes, 1e10, 1e-6};
  for (int i = 0; i < num_devices; ++i) {
    NodePool pool{"p" + std::to_string(i), 1, 1, i % 2 == 0 ? full : scaled(full, 0.5), false, 0};
    if (i % 2) pool.kind.name = "half";
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {}, 1e9, 10e-6, {}}};
  for (const NodePool& pool : cluster.pools) cluster.networks[0].connects.push_back(pool.name);
  return cluster;
}

// Returns stages of so many devices each, for the transformer with a head tied to its embedding.
Program pipeline_of(const std::vector<int>& sizes, const Cluster& cluster) {
  const std::vector<std::string> kFirst = {
      "", "blocks.0/add#1", "blocks.1.norm2/native_layer_norm#0"};
  LocalFiles files;
  const Graph graph =
      run_passes(parse_graph(files.read("python/tests/golden/gpt.graph"), "gpt.graph"));
  Plan plan;
  plan.pipelines.resize(1);
  for (int64_t rows : {3, 2, 3, 1}) {
    plan.pipelines[0].microbatches.push_back({rows, {}});
    plan.global_batch += rows;
  }
  int next = 0;
  for (size_t s = 0; s < sizes.size(); ++s) {
    Stage& stage = plan.pipelines[0].stages.emplace_back();
    stage.first = kFirst[s];
    stage.mesh = {{"x"}, {sizes[s]}, {}};
    for (int i = 0; i < sizes[s]; ++i)
      stage.mesh.devices.push_back(cluster.devices[at(next++)].name);
  }
  verify(plan, graph, cluster);
  return lower(graph, plan, cluster, {});
}

Buffer buffer_of(const LoweredStage& stage, ValueId value, const std::vector<int64_t>& symbols) {
  const TensorType& type = type_of(stage.graph, value);
  std::vector<int64_t> shape;
  for (const Size& size : type.shape) shape.push_back(evaluate(size, symbols));
  return null_buffer(type.dtype, shape);
}

EmulatedOutcome run(const Program& program,
                    const Cluster& cluster,
                    unsigned delay_seed,
                    int steps) {
  const auto fill = [&](Interpreter& interpreter, size_t s, size_t d, bool first) {
    const LoweredStage& stage = program.stages[s];
    for (size_t m = 0; m < stage.tables.size(); ++m) {
      BatchInputs batch;
      for (const Input& input : stage.graph.inputs) {
        const bool runs = stage.lifetimes[at(input.value)] == Lifetime::kRun;
        Buffer buffer = buffer_of(stage, input.value, stage.tables[m][d]);
        if (!runs)
          batch.emplace_back(input.value, std::move(buffer));
        else if (first && m == 0)
          interpreter.write(input.value, std::move(buffer));
      }
      interpreter.set_batch(static_cast<int>(m), std::move(batch));
    }
  };
  return run_emulated(program, cluster, {}, random_delay(delay_seed, 8, 300), steps, fill);
}

const std::vector<std::vector<int>> kPipelines = {{1, 1}, {2, 1}, {1, 2, 1}};

TEST(EmulatedPipeline, HostDelaysChangeNothing) {
  for (const std::vector<int>& sizes : kPipelines) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    const Cluster cluster = cluster_of(std::accumulate(sizes.begin(), sizes.end(), 0));
    const Program program = pipeline_of(sizes, cluster);
    std::vector<std::vector<std::vector<TraceEvent>>> runs;
    for (unsigned seed : {0u, 1u, 2u}) {
      EmulatedOutcome each = run(program, cluster, seed, 2);
      ASSERT_THAT(each.errors, Each(""));
      runs.push_back(std::move(each.events));
    }
    EXPECT_TRUE(runs[0] == runs[1] && runs[0] == runs[2]);
  }
}

// Three steps: receives posted ahead and unfinished sends begin anew in each.
TEST(EmulatedPipeline, MemoryIsWhatThePlanningSays) {
  for (const std::vector<int>& sizes : kPipelines) {
    SCOPED_TRACE(::testing::PrintToString(sizes));
    const Cluster cluster = cluster_of(std::accumulate(sizes.begin(), sizes.end(), 0));
    const Program program = pipeline_of(sizes, cluster);
    const EmulatedOutcome outcome = run(program, cluster, 0, 3);
    ASSERT_THAT(outcome.errors, Each(""));
    for (const DeviceMemory& each : memory_uses(program))
      EXPECT_EQ(outcome.peaks[at(each.device)], each.use.peak) << each.device;
  }
}

// A transfer overlaps with computing on both ends, and takes its bytes over the port plus the
// latency.
TEST(EmulatedPipeline, TransfersTakeTheirTime) {
  const Cluster cluster = cluster_of(2);
  const Program program = pipeline_of({1, 1}, cluster);
  const EmulatedOutcome outcome = run(program, cluster, 0, 1);
  ASSERT_THAT(outcome.errors, Each(""));
  std::vector<const TraceEvent*> sent, received;
  for (const TraceEvent& event : outcome.events[0])
    if (event.category == "transfer" && event.name == "transfer blocks.0/add#0") {
      sent.push_back(&event);
    }
  for (const TraceEvent& event : outcome.events[1])
    if (event.category == "transfer" && event.name == "transfer blocks.0/add#0")
      received.push_back(&event);
  ASSERT_EQ(sent.size(), 4u);
  ASSERT_EQ(received.size(), 4u);
  for (size_t m = 0; m < 4; ++m) {
    const int64_t bytes = std::stoll(sent[m]->args.at(0).second);
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(received[m]->args, sent[m]->args);
    EXPECT_EQ(received[m]->start, sent[m]->start);
    EXPECT_GE(sent[m]->duration.value, bytes);
    EXPECT_GE(received[m]->duration, sent[m]->duration + Nanoseconds{10'000});
  }
}

TEST(EmulatedPipeline, ShortageOfMemoryIsNamed) {
  const Cluster cluster = cluster_of(2, 300 * 1024);
  const EmulatedOutcome outcome = run(pipeline_of({1, 1}, cluster), cluster, 0, 1);
  EXPECT_THAT(outcome.errors[0] + outcome.errors[1], HasSubstr("out of memory: "));
}

}  // namespace
}  // namespace medley
