// The simulation equals the emulation exactly: events, times and live bytes. The emulation is a
// separate program (an interpreter, an executor and a transport per device, threads, a ledger).
// Both share only the network engine and the prices.

#include <gmock/gmock.h>

#include <thread>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/emulation/emulated_clock.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/interpreter.h"
#include "medley/runtime/null_executor.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/testing/random_plan.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using ::testing::Each;

constexpr uint64_t kSeeds = 40;
// Returns the seeds for several pipelines; nightly runs have more.
uint64_t several_seeds() { return seeds_of("MEDLEY_AGREEMENT_SEEDS", kSeeds); }

struct Emulated {
  Trace trace;
  std::vector<Nanoseconds> ends;  // [device], over all stages
  std::vector<int64_t> peaks;
  std::vector<std::string> errors;
};

Buffer buffer_of(const LoweredStage& stage, ValueId value, const std::vector<int64_t>& symbols) {
  const TensorType& type = type_of(stage.graph, value);
  std::vector<int64_t> shape;
  for (const Size& size : type.shape) shape.push_back(evaluate(size, symbols));
  return null_buffer(type.dtype, shape);
}

// Runs one step; returns its events.
std::vector<TraceEvent> run_device(const LoweredStage& stage, size_t d, Interpreter& interpreter) {
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
  return interpreter.run_step().events;
}

// Runs one step of all devices, each in a thread.
Emulated emulate(const Program& program, const Cluster& cluster) {
  const Topology topology(cluster);
  const auto ledger = Ledger::create(topology);
  NullExecutor null;
  SteadyClock steady;
  InProcessTransport inner(null, steady, std::chrono::seconds(60));
  EmulatedTransport transport(inner, *ledger);
  struct Place {
    int stage, index, device;
  };
  std::vector<Place> places;
  std::vector<bool> used(at(topology.num_devices()));
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (size_t d = 0; d < program.stages[s].devices.size(); ++d) {
      places.push_back({static_cast<int>(s), static_cast<int>(d), program.stages[s].devices[d]});
      used[at(places.back().device)] = true;
    }
  for (int i = 0; i < topology.num_devices(); ++i)
    if (!used[at(i)]) ledger->join(i), ledger->leave(i);
  Emulated result;
  for (const Device& device : cluster.devices) result.trace.devices.push_back(device.name);
  result.ends.resize(places.size());
  result.peaks.resize(places.size());
  result.errors.resize(places.size());
  std::vector<std::vector<TraceEvent>> events(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i)
    threads.emplace_back([&, i] {
      const auto [s, d, device] = places[i];
      try {
        ledger->join(device);
        EmulatedExecutor executor(null, *ledger, device);
        EmulatedClock clock(*ledger, device);
        InterpreterOptions options;
        options.trace = true;
        Interpreter interpreter(program, s, d, executor, transport, clock, options);
        events[i] = run_device(program.stages[at(s)], at(d), interpreter);
        result.ends[i] = clock.now();
        result.peaks[i] = executor.memory().peak();
        ledger->leave(device);
      } catch (const Error& error) {
        result.errors[i] = error.what();
        transport.abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_device : events)
    result.trace.events.insert(result.trace.events.end(), of_device.begin(), of_device.end());
  sort(result.trace);
  return result;
}

class Agreement : public ::testing::Test {
 protected:
  Agreement() {
    LocalFiles files;
    graph = parse_graph(files.read("tests/data/mlp.graph"), "mlp.graph");
    cluster = parse_cluster(
        files.read("tests/data/clusters/demo.yaml"), "demo.yaml", read_catalogue("data/devices"));
    cluster.pools[0].kind.workspace_bytes = 33 << 20;
  }

  void expect_agreement(const Plan& plan) { expect_agreement(graph, plan); }
  void expect_agreement(const Graph& of, const Plan& plan, const Optimizer& optimizer = {}) {
    verify(plan, of, cluster);
    const Program program = lower(of, plan, cluster, optimizer);
    const Emulated emulated = emulate(program, cluster);
    ASSERT_THAT(emulated.errors, Each(""));
    const Simulation simulated =
        simulate(program, CostModel(cluster), {.trace = true, .memory = true});
    ASSERT_EQ(simulated.trace.events.size(), emulated.trace.events.size());
    for (size_t i = 0; i < simulated.trace.events.size(); ++i) {
      const TraceEvent &a = simulated.trace.events[i], &b = emulated.trace.events[i];
      ASSERT_EQ(a, b) << a.device << " " << a.name << " " << a.start << " " << a.duration << "; "
                      << b.device << " " << b.name << " " << b.start << " " << b.duration;
    }
    EXPECT_EQ(simulated.step, *std::max_element(emulated.ends.begin(), emulated.ends.end()));
    for (size_t d = 0; d < emulated.peaks.size(); ++d) {
      EXPECT_EQ(simulated.devices[d].peak_bytes, emulated.peaks[d]) << d;
      int64_t drawn = 0;
      for (const auto& [from, bytes] : simulated.trace.memory[d].bytes)
        drawn = std::max(drawn, bytes);
      EXPECT_EQ(drawn, emulated.peaks[d]) << d;
    }
  }

  static Graph transformer() {
    return run_passes(parse_graph(LocalFiles().read("python/tests/golden/gpt.graph"), "gpt.graph"));
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Device& device : cluster.devices) all.push_back(device.name);
    return all;
  }

  Plan rows(const std::vector<std::vector<int64_t>>& microbatches) const {
    std::vector<std::string> devices;
    for (size_t i = 0; i < microbatches[0].size(); ++i) devices.push_back(cluster.devices[i].name);
    return plan_of_rows(std::move(devices), microbatches);
  }

  Graph graph;
  Cluster cluster;
};

TEST_F(Agreement, OneDevice) { expect_agreement(rows({{12}})); }
TEST_F(Agreement, EvenRows) { expect_agreement(rows({{400, 400, 400, 400}})); }
TEST_F(Agreement, UnevenRowsInSeveralMicrobatches) {
  expect_agreement(rows({{4000, 4000, 2000, 2000}, {300, 500, 20, 0}, {40000, 1, 7, 200}}));
}

TEST_F(Agreement, RandomPlans) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Plan plan = random_plan(graph, names(), 5000, seed);
    expect_agreement(plan);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Agreement, RandomPipelines) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    expect_agreement(random_pipeline(graph, names(), 5000, seed));
    if (HasFatalFailure()) return;
  }
}

// Half of them with owners.
TEST_F(Agreement, RandomSeveralPipelines) {
  for (uint64_t seed = 0; seed < several_seeds(); ++seed) {
    SCOPED_TRACE(seed);
    expect_agreement(random_pipelines(graph, names(), 5000, seed));
    if (HasFatalFailure()) return;
  }
}

// The owner of a matrix has and updates all of it.
TEST_F(Agreement, RandomOwnersOfWholeTensors) {
  Optimizer adafactor;
  adafactor.rules = {{"adafactor", {0.1, -0.8, 1e-12, 1e-3, 1}}};
  for (uint64_t seed = 0; seed < several_seeds(); ++seed) {
    SCOPED_TRACE(seed);
    expect_agreement(graph, random_pipelines_for(adafactor, graph, names(), 5000, seed), adafactor);
    if (HasFatalFailure()) return;
  }
}

// Cuts are arbitrary, so values skip stages; the head is tied to the embedding.
TEST_F(Agreement, RandomPipelinesOfATransformer) {
  const Graph gpt = transformer();
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    expect_agreement(gpt, random_pipeline(gpt, names(), 37, seed));
    if (HasFatalFailure()) return;
  }
}

TEST_F(Agreement, RandomSeveralPipelinesOfATransformer) {
  const Graph gpt = transformer();
  for (uint64_t seed = 0; seed < several_seeds(); ++seed) {
    SCOPED_TRACE(seed);
    expect_agreement(gpt, random_pipelines(gpt, names(), 37, seed));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace medley
