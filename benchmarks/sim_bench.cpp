// The simulator's speed on segments and messages, and the time for a step of 1,024 devices.
//
//   exact/8      a training step of 64 layers, 8 devices in 2 nodes: message by message
//   estimated/n  the same step on n devices, whole communications
//   pipeline/n   n stages of one device, 128 micro-batches, 1F1B: message by message
//   pipeline_estimated/n  the same, whole transfers

#include <benchmark/benchmark.h>

#include "medley/schedule/call_order.h"
#include "medley/schedule/counts.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

constexpr int kPerNode = 4, kLayers = 64;

// Returns two types of nodes of four devices with a fabric, on one switch.
Cluster cluster_of(int num_devices) {
  Cluster cluster;
  for (const auto& [name, speed] : {std::pair("fast", 1.0), {"slow", 0.5}}) {
    NodePool pool;
    pool.name = name;
    pool.count = num_devices / kPerNode / 2;
    pool.devices_per_node = kPerNode;
    pool.kind = scaled({name, {}, {{DType::kF32, 1e13}}, 1e11, 1e12, 1e-6}, speed);
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"fabric", true, {}, 1e11, 3e-6, std::nullopt},
                      {"lan", false, {"fast", "slow"}, 1.25e10, 1e-5, std::nullopt}};
  return cluster;
}

// Returns per layer a matmul forward and one backward, whose gradient is summed while the next
// layer computes. The lengths of the rows differ.
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

int transfer(LoweredStage& stage, int from, int to, int lane, int slots) {
  Communication transfer;
  transfer.kind = CommunicationKind::kTransfer;
  transfer.devices = {from, to};
  transfer.lane = lane;
  transfer.depth = slots;
  transfer.send = transfer.receive = {Size(0), Size(0)};
  const ValueId value = 0;
  const Size length(64 * 1024);
  const bool sends = stage.devices[0] == from;
  (sends ? transfer.inputs : transfer.outputs) = {value};
  (sends ? transfer.send[1] : transfer.receive[0]) = length;
  stage.communications.push_back(transfer);
  return static_cast<int>(stage.communications.size()) - 1;
}

// Returns a matmul forward and one backward, with transfers of 256 KiB in both directions.
Program pipeline_of(int stages, int microbatches) {
  Program program;
  const std::vector<int> counts = one_f_one_b(stages, microbatches);
  const PipelineOrder order = order_calls(counts, microbatches);
  const std::vector<int> slots = message_slots(counts);
  for (int s = 0; s < stages; ++s) {
    LoweredStage& stage = program.stages.emplace_back();
    stage.devices = {s};
    stage.mesh = {1};
    const ValueId x = add_input(stage.graph, InputKind::kBatch, "x", {DType::kF32, {64, 1024}});
    const ValueId w =
        add_input(stage.graph, InputKind::kParameter, "w", {DType::kF32, {1024, 1024}});
    Function forward{FunctionKind::kForward, {}, {}}, backward{FunctionKind::kBackward, {}, {}};
    Op op;
    op.name = "aten.mm.default";
    op.arguments = {ValueArgument{x}, ValueArgument{w}};
    for (int i = 0; i < 2; ++i) add_op(stage.graph, op, {{DType::kF32, {64, 1024}}});
    const auto at = [&](int boundary) { return slots[static_cast<size_t>(boundary)]; };
    if (s > 0) forward.steps.emplace_back(Wait{transfer(stage, s - 1, s, 2 * s - 2, at(s - 1))});
    forward.steps.emplace_back(Segment{{0}, {{}}});
    if (s + 1 < stages) {
      forward.steps.emplace_back(Post{transfer(stage, s, s + 1, 2 * s, at(s)), {}});
      backward.steps.emplace_back(Wait{transfer(stage, s + 1, s, 2 * s + 1, at(s))});
    }
    backward.steps.emplace_back(Segment{{1}, {{}}});
    if (s > 0)
      backward.steps.emplace_back(Post{transfer(stage, s, s - 1, 2 * s - 1, at(s - 1)), {}});
    stage.functions = {forward, backward};
    for (const PipelineCall& call : order[static_cast<size_t>(s)])
      stage.calls.push_back({call.function == PipelineFunction::kForward ? FunctionKind::kForward
                                                                         : FunctionKind::kBackward,
                             call.microbatch});
    stage.lifetimes.assign(stage.graph.values.size(), Lifetime::kMicrobatch);
    stage.tables.assign(static_cast<size_t>(microbatches), {{}});
  }
  return program;
}

void simulate_pipeline(benchmark::State& state, int64_t exact_messages) {
  const auto stages = static_cast<int>(state.range(0));
  const Program program = pipeline_of(stages, 128);
  const CostModel costs(cluster_of(stages));
  double step = 0;
  for (auto _ : state)
    step = to_seconds(simulate(program, costs, {.exact_messages = exact_messages}).step).value;
  state.counters["step_ms"] = step * 1e3;
}
void pipeline(benchmark::State& state) { simulate_pipeline(state, int64_t{1} << 60); }
void pipeline_estimated(benchmark::State& state) { simulate_pipeline(state, 0); }

BENCHMARK(exact)->Arg(8)->Arg(16)->Arg(32)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK(estimated)->Arg(8)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);
BENCHMARK(pipeline)->Arg(8)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond);
BENCHMARK(pipeline_estimated)->Arg(64)->Arg(512)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
