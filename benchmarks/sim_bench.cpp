// How fast the simulator follows segments and messages, and how long a step of 1,024 devices takes.
//
//   exact/8      a training step of 64 layers, 8 devices in 2 nodes: message by message
//   estimated/n  the same step on n devices, communications as wholes

#include <benchmark/benchmark.h>

#include "medley/sim/simulate.h"

namespace medley {
namespace {

constexpr int kPerNode = 4, kLayers = 64;

// Two kinds of nodes of four devices with a fabric, on one switch.
Cluster cluster_of(int num_devices) {
  Cluster cluster;
  for (const auto& [name, speed] : {std::pair("fast", 1.0), {"slow", 0.5}}) {
    NodePool pool;
    pool.name = name;
    pool.count = num_devices / kPerNode / 2;
    pool.devices_per_node = kPerNode;
    pool.kind = scaled({name, {}, {{DType::kF32, 1e13}}, 1e11, 1e12, 1e-6}, speed);
    for (int node = 0; node < pool.count; ++node)
      for (int i = 0; i < kPerNode; ++i)
        cluster.devices.push_back(
            {std::string(name) + "/" + std::to_string(node) + "/" + std::to_string(i),
             static_cast<int>(cluster.pools.size()),
             node,
             i});
    cluster.pools.push_back(pool);
  }
  cluster.networks = {{"fabric", true, {}, 1e11, 3e-6, std::nullopt},
                      {"lan", false, {"fast", "slow"}, 1.25e10, 1e-5, std::nullopt}};
  return cluster;
}

// Per layer a product forward and one backward, whose gradient is summed while the next layer
// computes. The lengths of the rows differ.
Program program_of(int num_devices) {
  Program program;
  LoweredStage& stage = program.stages.emplace_back();
  for (int d = 0; d < num_devices; ++d) stage.devices.push_back(d);
  stage.mesh = {num_devices};
  Graph& graph = stage.graph;
  graph.symbols = {"rows", "me"};
  const auto product = [&](ValueId a, ValueId b, std::vector<Size> shape) {
    Op op;
    op.name = "aten.mm.default";
    op.arguments = {ValueArgument{a}, ValueArgument{b}};
    return add_op(graph, op, {{DType::kF32, std::move(shape)}}).at(0);
  };
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {DType::kF32, {Size::of(0), 1024}});
  const ValueId xt = add_input(graph, InputKind::kBatch, "xt", {DType::kF32, {1024, Size::of(0)}});
  Function forward{FunctionKind::kForward, {}, {}}, backward{FunctionKind::kBackward, {}, {}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const ValueId w = add_input(
        graph, InputKind::kParameter, "w" + std::to_string(layer), {DType::kF32, {1024, 1024}});
    const ValueId y = product(x, w, {Size::of(0), 1024});
    forward.steps.emplace_back(Segment{{static_cast<OpId>(graph.ops.size()) - 1}, {{y}}});
    const ValueId g = product(xt, x, {1024, 1024});
    backward.steps.emplace_back(Segment{{static_cast<OpId>(graph.ops.size()) - 1}, {{}}});
    const auto sum = static_cast<ValueId>(graph.values.size());
    graph.values.push_back({{DType::kF32, {1024, 1024}}, kNone, 0});
    Communication reduce;
    reduce.inputs = {g};
    reduce.outputs = {sum};
    stage.communications.push_back(reduce);
    backward.steps.emplace_back(Post{layer, {g}});
  }
  for (int layer = 0; layer < kLayers; ++layer) backward.steps.emplace_back(Wait{layer});
  stage.functions = {forward, backward};
  stage.calls = {{FunctionKind::kForward, 0}, {FunctionKind::kBackward, 0}};
  stage.lifetimes.assign(graph.values.size(), Lifetime::kMicrobatch);
  stage.tables.emplace_back();
  for (int d = 0; d < num_devices; ++d) stage.tables[0].push_back({64 + 32 * (d % 3), d});
  return program;
}

void simulate_step(benchmark::State& state, int64_t exact_messages) {
  const auto n = static_cast<int>(state.range(0));
  const Program program = program_of(n);
  const CostModel costs(cluster_of(n));
  int64_t events = 0;
  double step = 0;
  for (auto _ : state) {
    const Simulation simulation = simulate(program, costs, {.exact_messages = exact_messages});
    events += simulation.events;
    step = to_seconds(simulation.step).value;
  }
  state.counters["events/s"] =
      benchmark::Counter(static_cast<double>(events), benchmark::Counter::kIsRate);
  state.counters["step_ms"] = step * 1e3;
}

void exact(benchmark::State& state) { simulate_step(state, int64_t{1} << 60); }
void estimated(benchmark::State& state) { simulate_step(state, 0); }

BENCHMARK(exact)->Arg(8)->Arg(16)->Arg(32)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK(estimated)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
