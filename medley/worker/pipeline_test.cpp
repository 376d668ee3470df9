// Pipelines over the in-process transport, with the null executor: any shape ends, with any delays
// of devices.

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <random>
#include <sstream>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/plan/plan.h"
#include "medley/testing/late_transport.h"
#include "medley/testing/null_parts.h"
#include "medley/testing/random_plan.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Forward ops between which the model can be cut.
const std::vector<std::string> kCuts{"fc1/add#0", "act/relu#0", "fc2/mm#0", "fc2/add#0"};

Graph mlp() {
  std::ifstream file("tests/data/mlp.graph");
  std::stringstream text;
  text << file.rdbuf();
  return run_passes(parse_graph(text.str(), "mlp.graph"));
}

Cluster devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Random numbers below a bound.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t operator()(int64_t below) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(below));
  }

 private:
  std::mt19937_64 random_;
};

std::vector<double> shares(Draw& draw, int64_t devices) {
  std::vector<double> all;
  for (int64_t i = 0; i < devices; ++i) all.push_back(static_cast<double>(draw(3)));
  all[at(draw(devices))] += 1;
  return all;
}

// Returns stages of any sizes with any or no division of rows, any counts in flight, and
// micro-batches of any sizes.
Plan random_pipeline(uint64_t seed, int& used) {
  Draw draw(seed);
  const auto stages = at(1 + draw(4));
  std::vector<std::string> cuts = kCuts;
  while (cuts.size() > stages - 1)
    cuts.erase(cuts.begin() + draw(static_cast<int64_t>(cuts.size())));
  Plan plan;
  plan.pipelines.resize(1);
  Pipeline& pipeline = plan.pipelines[0];
  used = 0;
  for (size_t s = 0; s < stages; ++s) {
    Stage& stage = pipeline.stages.emplace_back();
    const int64_t count = 1 + draw(3);
    stage.mesh = {{"x"}, {count}, {}};
    for (int64_t i = 0; i < count; ++i)
      stage.mesh.devices.push_back("a/" + std::to_string(used++) + "/0");
    if (s == 0) continue;
    stage.first = cuts[s - 1];
    if (draw(2)) stage.rows = shares(draw, count);
  }
  const int64_t microbatches = 1 + draw(6);
  const bool by_rows = draw(2);
  const std::vector<double> first = shares(draw, pipeline.stages[0].mesh.shape[0]);
  for (int64_t m = 0; m < microbatches; ++m) {
    Microbatch microbatch{1 + draw(5), {}};
    if (by_rows) {
      microbatch.lengths.assign(first.size(), 0);
      for (int64_t row = 0; row < microbatch.rows; ++row)
        ++microbatch.lengths[at(draw(static_cast<int64_t>(first.size())))];
    }
    plan.global_batch += microbatch.rows;
    pipeline.microbatches.push_back(microbatch);
  }
  int64_t count = 1 + draw(2);
  std::vector<int64_t> counts;
  for (size_t s = 0; s < stages; ++s, count += draw(4)) counts.push_back(count);
  pipeline.in_flight.assign(counts.rbegin(), counts.rend());
  for (Stage& stage : pipeline.stages) stage.recompute = kRecompute[at(draw(kRecompute.size()))];
  return plan;
}

Buffer buffer_of(const LoweredStage& stage, ValueId value, const std::vector<int64_t>& symbols) {
  const TensorType& type = type_of(stage.graph, value);
  std::vector<int64_t> shape;
  for (const Size& size : type.shape) shape.push_back(evaluate(size, symbols));
  return null_buffer(type.dtype, shape);
}

void fill(Devices& devices, const Program& program) {
  int number = 0;
  for (const LoweredStage& stage : program.stages)
    for (size_t d = 0; d < stage.devices.size(); ++d, ++number) {
      Interpreter& interpreter = devices.interpreter(number);
      for (const Input& input : stage.graph.inputs)
        if (stage.lifetimes[at(input.value)] == Lifetime::kRun)
          interpreter.write(input.value, buffer_of(stage, input.value, stage.tables[0][d]));
      for (size_t m = 0; m < stage.tables.size(); ++m) {
        BatchInputs batch;
        for (const Input& input : stage.graph.inputs)
          if (stage.lifetimes[at(input.value)] == Lifetime::kMicrobatch)
            batch.emplace_back(input.value, buffer_of(stage, input.value, stage.tables[m][d]));
        interpreter.set_batch(static_cast<int>(m), std::move(batch));
      }
    }
}

// Runs on devices with random delays.
void expect_that_it_ends(const GraphAnalysis& analysis,
                         const Plan& plan,
                         const Cluster& cluster,
                         uint64_t seed,
                         size_t& several) {
  verify(plan, analysis.graph, cluster);
  const Program program = lower(analysis, plan, cluster);
  several += program.stages.size() > 1 ? 1 : 0;
  Devices run(share(program),
              cluster,
              null_parts(
                  [&](std::shared_ptr<Transport> next) {
                    const auto of_plan = static_cast<uint32_t>(16 * seed + 1);
                    return std::make_shared<LateTransport>(std::move(next), of_plan, 8, 100);
                  },
                  milliseconds(30000)));
  fill(run, program);
  ASSERT_NO_THROW(run.run_step()) << "seed " << seed << "\n" << print(plan);
}

TEST(Pipeline, RandomDelaysNeverDeadlock) {
  const GraphAnalysis analysis = analyse(mlp(), {});
  const uint64_t seeds = seeds_of(1000);
  size_t several = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    int used = 0;
    const Plan plan = random_pipeline(seed, used);
    expect_that_it_ends(analysis, plan, devices(used), seed, several);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(several, seeds * 6 / 10);
}

// Includes gradient syncs of several pipelines.
TEST(Pipeline, RandomDelaysNeverDeadlockSeveralPipelines) {
  const GraphAnalysis analysis = analyse(mlp(), {});
  const uint64_t seeds = seeds_of(1000);
  size_t several = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const Cluster cluster = devices(static_cast<int>(2 + seed % 5));
    std::vector<std::string> names;
    for (const Device& device : cluster.devices) names.push_back(device.name);
    const Plan plan = random_pipelines(analysis.graph, names, 12, seed);
    expect_that_it_ends(analysis, plan, cluster, seed, several);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(several, seeds);
}

// A device lost in the middle of a step is the cause that all report, not a time-out.
TEST(Pipeline, LostDeviceIsTheCauseForAll) {
  class Dying final : public NullExecutor {
   public:
    void run(PreparedSegment& segment, Frames frames) override {
      if (left_-- <= 0) throw Error(Blame::kEnvironment, "device lost");
      NullExecutor::run(segment, frames);
    }

   private:
    std::atomic<int> left_ = 4;
  };
  const GraphAnalysis analysis = analyse(mlp(), {});
  Plan plan;
  plan.global_batch = 8;
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches.assign(4, {2, {}});
  for (int s = 0; s < 3; ++s) {
    Stage& stage = plan.pipelines[0].stages.emplace_back();
    stage.mesh = {{"x"}, {1}, {"a/" + std::to_string(s) + "/0"}};
    if (s > 0) stage.first = kCuts[at(2 * s - 1)];
  }
  const Cluster cluster = devices(3);
  const Program program = lower(analysis, plan, cluster);
  Devices run(share(program),
              cluster,
              null_parts({std::make_shared<NullExecutor>(),
                          std::make_shared<Dying>(),
                          std::make_shared<NullExecutor>()}));
  fill(run, program);
  try {
    run.run_step();
    FAIL() << "a lost device is an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a/1/0: stage 1: "));
    EXPECT_THAT(error.what(), HasSubstr("device lost"));
  }
}

}  // namespace
}  // namespace medley
