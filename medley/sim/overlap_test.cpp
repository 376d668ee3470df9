// Ops that overlap communication of their device are slower by its type's factor.

#include <gmock/gmock.h>

#include "medley/sim/simulate.h"

namespace medley {
namespace {

// Returns two nodes with ports of 1 GB/s.
Cluster two_nodes() {
  Cluster cluster;
  cluster.pools = {{"a", 2, 1, {"kind", {}, {{DType::kF32, 1e12}}, 1e9, 1e12, 0}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a"}, 1e9, 1e-5, {}}};
  return cluster;
}

// Returns a matmul, the all-reduce of its result, and a second matmul in parallel.
Program program_of(int64_t rows, int64_t width) {
  Program program;
  LoweredStage& stage = program.stages.emplace_back();
  stage.devices = {0, 1};
  stage.mesh = {2};
  Graph& graph = stage.graph;
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {DType::kF32, {rows, 64}});
  const ValueId w = add_input(graph, InputKind::kParameter, "w", {DType::kF32, {64, width}});
  Op op;
  op.name = "aten.mm.default";
  op.arguments = {ValueArgument{x}, ValueArgument{w}};
  const ValueId g = add_op(graph, op, {{DType::kF32, {width}}}).at(0);
  const ValueId y = add_op(graph, op, {{DType::kF32, {rows, width}}}).at(0);
  graph.values.push_back({{DType::kF32, {width}}, kNone, 0});
  Communication reduce;
  reduce.inputs = {g};
  reduce.outputs = {static_cast<ValueId>(graph.values.size()) - 1};
  stage.communications = {reduce};
  stage.functions = {{FunctionKind::kForward,
                      {Segment{{0}, {{}}}, Post{0, {g}}, Segment{{1}, {{y}}}, Wait{0}},
                      {}}};
  stage.calls = {{FunctionKind::kForward, 0}};
  stage.lifetimes.assign(graph.values.size(), Lifetime::kMicrobatch);
  stage.tables = {std::vector<std::vector<int64_t>>(2)};
  return program;
}

Simulation simulated(const Program& program, double slowdown, int64_t exact_messages = 1000) {
  // The profile has an op and a class that the program does not use.
  const SizedOp other{
      "aten.gelu.default(f32[9])", "aten.gelu.default", WorkClass::kMemory, DType::kF32, {0, 72}};
  const Profile profile{"null", {{"kind", other, {1}, 1}}, {}, {{"kind", slowdown}}};
  return simulate(program, CostModel(two_nodes(), profile), {.exact_messages = exact_messages});
}

struct Alone {
  int64_t op, communication;  // ns
};
Alone alone(const Program& program) {
  const Simulation plain = simulate(program, CostModel(two_nodes()));
  return {plain.devices[0].computes.value / 2, plain.devices[0].communicates.value};
}

TEST(SimulateOverlap, OpOverlappedByALongerCommunicationTakesTheFactor) {
  const Program program = program_of(1, 400'000);
  const auto [op, communication] = alone(program);
  ASSERT_GT(communication, 2 * op);
  for (const int64_t messages : {1000, 0}) {  // exact, and estimated
    const Simulation result = simulated(program, 1.5, messages);
    EXPECT_NEAR(static_cast<double>(result.devices[0].computes.value),
                static_cast<double>(op) + 1.5 * static_cast<double>(op),
                1);
    EXPECT_NEAR(static_cast<double>(result.step.value),
                static_cast<double>(op + communication),
                messages == 0 ? 1e-3 * static_cast<double>(communication) : 0);
  }
}

// During c ns of communication c / 1.5 are done, the rest at full speed.
TEST(SimulateOverlap, OnlyThePartThatOverlapsIsSlower) {
  const Program program = program_of(1000, 1000);
  const auto [op, communication] = alone(program);
  ASSERT_GT(op, 2 * communication);
  for (const int64_t messages : {1000, 0}) {
    const Simulation result = simulated(program, 1.5, messages);
    const double both =
        static_cast<double>(2 * op) + static_cast<double>(communication) * 0.5 / 1.5;
    EXPECT_NEAR(static_cast<double>(result.step.value), both, 2);
    EXPECT_EQ(result.devices[0].computes, result.step);
  }
}

// All events are equal: a factor of 1 changes nothing.
TEST(SimulateOverlap, AFactorOfOneIsNone) {
  for (const int64_t width : {1000, 400'000}) {
    const Program program = program_of(3, width);
    EXPECT_EQ(simulated(program, 1), simulate(program, CostModel(two_nodes())));
  }
}

TEST(SimulateOverlap, IsDeterministicAndNeverShorter) {
  for (const int64_t width : {10, 5'000, 90'000}) {
    const Program program = program_of(20, width);
    Nanoseconds before;
    for (const double slowdown : {1.0, 1.1, 1.7, 4.0}) {
      const Simulation result = simulated(program, slowdown);
      EXPECT_EQ(result, simulated(program, slowdown));
      EXPECT_GE(result.step, before);
      before = result.step;
    }
  }
}

}  // namespace
}  // namespace medley
