// What is simulated is what the emulation does: the same events at the same nanoseconds, and the
// same bytes alive. The emulation is another program (an interpreter, an executor and a transport
// per device, threads, a ledger); it shares the engine of the network and the prices with this one.

#include <gmock/gmock.h>

#include <thread>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/emulation/emulated_clock.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/graph/text.h"
#include "medley/planner/data_parallel.h"
#include "medley/planner/random.h"
#include "medley/program/lower.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/interpreter.h"
#include "medley/runtime/null_executor.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

using ::testing::Each;

constexpr uint64_t kSeeds = 40;

struct Emulated {
  Trace trace;
  std::vector<Nanoseconds> ends;  // [device of the mesh]
  std::vector<int64_t> peaks;
  std::vector<std::string> errors;
};

Buffer buffer_of(const LoweredStage& stage, ValueId value, const std::vector<int64_t>& symbols) {
  const TensorType& type = type_of(stage.graph, value);
  std::vector<int64_t> shape;
  for (const Size& size : type.shape) shape.push_back(evaluate(size, symbols));
  return null_buffer(type.dtype, shape);
}

void run_device(const LoweredStage& stage,
                size_t d,
                Interpreter& interpreter,
                EmulatedClock& clock,
                Emulated& result) {
  for (const Input& input : stage.graph.inputs)
    if (stage.lifetimes[static_cast<size_t>(input.value)] == Lifetime::kRun)
      interpreter.write(input.value, buffer_of(stage, input.value, stage.tables[0][d]));
  for (size_t m = 0; m < stage.tables.size(); ++m) {
    BatchInputs batch;
    for (const Input& input : stage.graph.inputs)
      if (stage.lifetimes[static_cast<size_t>(input.value)] == Lifetime::kMicrobatch)
        batch.emplace_back(input.value, buffer_of(stage, input.value, stage.tables[m][d]));
    interpreter.set_batch(static_cast<int>(m), std::move(batch));
  }
  const StepReport report = interpreter.run_step();
  result.ends[d] = clock.now();
  for (const TraceEvent& event : report.events) result.trace.events.push_back(event);
}

Emulated emulate(const Program& program, const Cluster& cluster) {
  const Topology topology(cluster);
  const auto ledger = Ledger::create(topology);
  NullExecutor null;
  SteadyClock steady;
  InProcessTransport inner(null, steady, std::chrono::seconds(60));
  EmulatedTransport transport(inner, *ledger);
  const LoweredStage& stage = program.stages[0];
  Emulated result;
  for (const Device& device : cluster.devices) result.trace.devices.push_back(device.name);
  result.ends.resize(stage.devices.size());
  result.peaks.resize(stage.devices.size());
  result.errors.resize(stage.devices.size());
  std::vector<Emulated> of_devices(stage.devices.size(), result);
  std::vector<std::thread> threads;
  for (int i = 0; i < topology.num_devices(); ++i)
    if (std::find(stage.devices.begin(), stage.devices.end(), i) == stage.devices.end())
      ledger->join(i), ledger->leave(i);
  for (size_t d = 0; d < stage.devices.size(); ++d)
    threads.emplace_back([&, d] {
      try {
        const int device = stage.devices[d];
        ledger->join(device);
        EmulatedExecutor executor(null, *ledger, device);
        EmulatedClock clock(*ledger, device);
        InterpreterOptions options;
        options.trace = true;
        Interpreter interpreter(
            program, 0, static_cast<int>(d), executor, transport, clock, options);
        run_device(stage, d, interpreter, clock, of_devices[d]);
        result.ends[d] = of_devices[d].ends[d];
        result.peaks[d] = executor.memory().peak();
        ledger->leave(device);
      } catch (const Error& error) {
        result.errors[d] = error.what();
        transport.abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Emulated& each : of_devices)
    for (const TraceEvent& event : each.trace.events) result.trace.events.push_back(event);
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
  }

  void expect_agreement(const Plan& plan) {
    verify(plan, graph, cluster);
    const Program program = lower(graph, plan, cluster, {});
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
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Plan plan = random_plan(graph, names, 5000, seed);
    expect_agreement(plan);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace medley
