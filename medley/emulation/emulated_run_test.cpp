// The decorators together, under the real interpreter, with the null executor and the in-process
// transport inside.

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/emulation/sample_run.h"
#include "medley/memory/memory.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kDevices = 3;

// Returns devices a, b at 1 Tflop/s and c at half of it, one per node, with ports of 1 GB/s.
Cluster cluster() {
  Cluster cluster;
  const DeviceKind full{"full", {{DType::kF32, 1e12}}, {{DType::kF32, 1e12}}, 1e9, 1e11, 1e-6};
  for (const auto& [name, speed] : {std::pair("a", 1.0), {"b", 1.0}, {"c", 0.5}}) {
    NodePool pool;
    pool.name = name;
    pool.kind = scaled(full, speed);
    pool.kind.name = speed == 1 ? "full" : "half";
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"a", "b", "c"}, 1e9, 10e-6, std::nullopt}};
  return cluster;
}

ValueId append(LoweredStage& stage,
               std::string name,
               std::vector<ValueId> operands,
               std::vector<Size> shape) {
  Op op;
  op.name = std::move(name);
  op.module = "layer";
  for (ValueId value : operands) op.arguments.push_back(ValueArgument{value});
  return add_op(stage.graph, op, {{DType::kF32, std::move(shape)}}).at(0);
}

// Two micro-batches with rows that differ by device: y = x w, g = w * w, all-reduce of g and,
// gathered, of y's sum.
Program program(const std::vector<std::vector<int64_t>>& rows) {
  Program program;
  LoweredStage& stage = program.stages.emplace_back();
  stage.devices = {0, 1, 2};
  stage.mesh = {kDevices};
  stage.graph.symbols = {"rows"};
  const ValueId w = add_input(stage.graph, InputKind::kParameter, "w", {DType::kF32, {256, 256}});
  const ValueId x =
      add_input(stage.graph, InputKind::kBatch, "x", {DType::kF32, {Size::of(0), 256}});
  const ValueId y = append(stage, "aten.mm.default", {x, w}, {Size::of(0), 256});
  const ValueId g = append(stage, "aten.mul.Tensor", {w, w}, {256, 256});
  const ValueId s = append(stage, "aten.sum.default", {y}, {});
  const ValueId g_sum = static_cast<ValueId>(stage.graph.values.size());
  stage.graph.values.push_back({{DType::kF32, {256, 256}}, kNone, 0});
  const ValueId all_s = static_cast<ValueId>(stage.graph.values.size());
  stage.graph.values.push_back({{DType::kF32, {3}}, kNone, 0});
  const ValueId out = append(stage, "aten.mul.Tensor", {g_sum, g_sum}, {256, 256});
  stage.lifetimes.assign(stage.graph.values.size(), Lifetime::kMicrobatch);
  stage.lifetimes[at(w)] = Lifetime::kRun;
  Communication reduce;
  reduce.inputs = {g};
  reduce.outputs = {g_sum};
  reduce.name = "all_reduce g";
  Communication gather;
  gather.kind = CommunicationKind::kAllGather;
  gather.inputs = {s};
  gather.outputs = {all_s};
  gather.receive = {1, 1, 1};
  gather.name = "all_gather s";
  stage.communications = {reduce, gather};
  Function forward;
  forward.kind = FunctionKind::kForward;
  forward.steps = {Segment{{1}, {{}}},
                   Post{0, {g}},
                   Segment{{0, 2}, {{x}, {y}}},
                   Post{1, {s}},
                   Wait{0},
                   Segment{{3}, {{g_sum, out}}},
                   Wait{1}};
  stage.functions = {forward};
  stage.calls = {{FunctionKind::kForward, 0}, {FunctionKind::kForward, 1}};
  for (const auto& each : rows) {
    auto& table = stage.tables.emplace_back();
    for (int64_t count : each) table.push_back({count});
  }
  return program;
}

EmulatedOutcome run(const Program& program,
                    const Cluster& on,
                    const HiddenTruth& truth,
                    unsigned delay_seed,
                    int steps) {
  const auto fill = [&](Interpreter& interpreter, size_t, size_t d, bool first) {
    if (first) interpreter.write(0, null_buffer(DType::kF32, {256, 256}));
    for (size_t m = 0; m < 2; ++m)
      interpreter.set_batch(
          static_cast<int>(m),
          {{1, null_buffer(DType::kF32, {program.stages[0].tables[m][d][0], 256})}});
  };
  return run_emulated(program, on, truth, random_delay(delay_seed, 2, 1500), steps, fill);
}

TEST(EmulatedRun, HostDelaysChangeNothing) {
  const Program uneven = program({{40, 30, 7}, {20, 0, 3}});
  std::vector<std::vector<std::vector<TraceEvent>>> runs;
  for (unsigned seed : {0u, 1u, 2u, 3u}) {
    EmulatedOutcome each = run(uneven, cluster(), {5, 0.2}, seed, 5);
    EXPECT_THAT(each.errors, Each(""));
    runs.push_back(std::move(each.events));
  }
  EXPECT_GT(runs[0][0].size(), 5u);
  EXPECT_THAT(runs, Each(runs[0]));
}

// A device's events until its first wait, in closed form. mul: 3 matrices of 256 KiB at 100 GB/s
// and a launch.
TEST(EmulatedRun, OpsAndMessagesTakeTheirTime) {
  const EmulatedOutcome once = run(program({{64, 64, 64}, {64, 64, 64}}), cluster(), {}, 0, 1);
  ASSERT_THAT(once.errors, Each(""));
  const std::vector<TraceEvent>& a = once.events[0];
  const Nanoseconds mul{1'000 + 7'864};
  ASSERT_GE(a.size(), 4u);
  EXPECT_EQ(a[0].start, Nanoseconds{0});
  EXPECT_EQ(a[0].duration, mul);
  EXPECT_EQ(a[1].start, mul);  // the post takes no time
  const std::vector<TraceEvent>& c = once.events[2];
  EXPECT_EQ(c[0].duration, (Nanoseconds{2'000 + 15'729}));
  // The all-reduce: c posts last; 2 * 2 rounds of a third of 256 KiB at 1 GB/s with a latency each.
  // The direct algorithm has 2 rounds of two such messages.
  const TraceEvent& reduce = a[3];
  EXPECT_EQ(reduce.name, "all_reduce g");
  EXPECT_EQ(reduce.stream, Stream::kCommunication);
  EXPECT_EQ(reduce.start, mul);
  const int64_t end = (reduce.start + reduce.duration).value;
  EXPECT_NEAR(static_cast<double>(end),
              2.0 * static_cast<double>(mul.value) + 4 * 262'144 / 3.0 + 2 * 10'000,
              100);
}

TEST(EmulatedRun, TheHiddenTruthChangesTimesWithinItsSpread) {
  const Program even = program({{64, 64, 64}, {64, 64, 64}});
  const EmulatedOutcome plain = run(even, cluster(), {}, 0, 1),
                        other = run(even, cluster(), {7, 0.3}, 0, 1);
  const double ratio = static_cast<double>(other.events[0][0].duration.value) /
                       static_cast<double>(plain.events[0][0].duration.value);
  EXPECT_NE(ratio, 1);
  EXPECT_GT(ratio, 0.7);
  EXPECT_LT(ratio, 1.3);
}

TEST(EmulatedRun, MemoryIsWhatThePlanningSays) {
  const Program uneven = program({{400, 300, 70}, {400, 300, 70}});
  const EmulatedOutcome once = run(uneven, cluster(), {}, 0, 2);
  ASSERT_THAT(once.errors, Each(""));
  for (int device = 0; device < kDevices; ++device) {
    EXPECT_EQ(once.peaks[at(device)], memory_use(uneven.stages[0], device).peak);
  }
}

TEST(EmulatedRun, ShortageOfMemoryIsNamed) {
  Cluster small = cluster();
  small.pools[1].kind.memory_bytes = 600 * 1024;
  const EmulatedOutcome once = run(program({{64, 256, 64}, {64, 64, 64}}), small, {}, 0, 1);
  EXPECT_THAT(once.errors[1],
              AllOf(HasSubstr("b/0/0: out of memory: aten.mul.Tensor (layer): needs 256 KiB, "
                              "available are 24 KiB of 600 KiB")));
  EXPECT_THAT(once.errors[0], HasSubstr("aborted: "));
}

}  // namespace
}  // namespace medley
