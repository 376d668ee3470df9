// Pipelines whose stages take given times and send one message per boundary and micro-batch equal
// the schedule timer (schedule/timer.h) exactly.

#include <gmock/gmock.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/schedule/counts.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/schedules.h"
#include "medley/sim/schedule_request.h"
#include "medley/sim/simulate.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

// Each stage is a node, and each boundary a network of 1 byte per ns, so every direction has its
// own link. A device does 1 flop per ns.
Cluster cluster_of(const PipelineTimes& times) {
  Cluster cluster;
  const DeviceKind kind{"kind", {}, {{DType::kF32, 1e9}}, 1e12, 1e18, 0};
  for (size_t i = 0; i < times.num_stages(); ++i) {
    const std::string name = "p" + std::to_string(i);
    cluster.pools.push_back({name, 1, 1, kind, false, 0});
    if (i == 0) continue;
    const double latency = to_seconds(times.sizes[0].boundaries[i - 1].latency).value;
    cluster.networks.push_back(
        {"lan" + std::to_string(i), false, {"p" + std::to_string(i - 1), name}, 1e9, latency, {}});
  }
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Symbols of a stage: rows of the matmuls of its forward and backward call, and elements exchanged
// over the boundaries before and after it, in both directions.
enum : Symbol { kForwardRows, kBackwardRows, kOnBefore, kBackBefore, kOnAfter, kBackAfter };

class StageMaker {
 public:
  explicit StageMaker(int device) : device_(device) {
    stage.devices = {device};
    stage.mesh = {1};
    stage.graph.symbols = {"forward", "backward", "a", "b", "c", "d"};
  }

  // Returns the matmul of [rows, 1] and [1, 1].
  Segment product(Symbol rows) {
    const ValueId x = input({Size::of(rows), 1}), w = input({1, 1});
    Op op;
    op.name = "aten.mm.default";
    op.arguments = {ValueArgument{x}, ValueArgument{w}};
    const ValueId y = add_op(stage.graph, op, {{DType::kF32, {Size::of(rows), 1}}}).at(0);
    return {{static_cast<OpId>(stage.graph.ops.size()) - 1}, {{y}}};
  }

  int transfer(int from, int to, Symbol length, int lane, int depth) {
    Communication transfer;
    transfer.kind = CommunicationKind::kTransfer;
    transfer.name = "transfer";
    transfer.devices = {from, to};
    transfer.lane = lane;
    transfer.depth = depth;
    transfer.send = transfer.receive = {Size(0), Size(0)};
    const ValueId value = input({Size::of(length)});
    if (from == device_) {
      transfer.inputs = {value};
      transfer.send[1] = Size::of(length);
    } else {
      transfer.outputs = {value};
      transfer.receive[0] = Size::of(length);
    }
    stage.communications.push_back(transfer);
    return static_cast<int>(stage.communications.size()) - 1;
  }

  LoweredStage stage;

 private:
  ValueId input(std::vector<Size> shape) {
    return add_input(stage.graph, InputKind::kBatch, "x", {DType::kF32, std::move(shape)});
  }
  int device_;
};

// Times are multiples of 4 ns: a matmul has 2 flops per row, an element 4 bytes. `slots`: the most
// messages in transit over each boundary.
Program program_of(const PipelineOrder& order,
                   const PipelineTimes& times,
                   const std::vector<int>& slots) {
  Program program;
  const auto stages = static_cast<int>(order.size());
  for (int i = 0; i < stages; ++i) {
    StageMaker maker(i);
    Function forward{FunctionKind::kForward, {}, {}}, backward{FunctionKind::kBackward, {}, {}};
    if (i > 0)
      forward.steps.emplace_back(
          Wait{maker.transfer(i - 1, i, kOnBefore, 2 * i - 2, slots[at(i - 1)])});
    forward.steps.emplace_back(maker.product(kForwardRows));
    if (i + 1 < stages) {
      forward.steps.emplace_back(Post{maker.transfer(i, i + 1, kOnAfter, 2 * i, slots[at(i)]), {}});
      backward.steps.emplace_back(
          Wait{maker.transfer(i + 1, i, kBackAfter, 2 * i + 1, slots[at(i)])});
    }
    backward.steps.emplace_back(maker.product(kBackwardRows));
    if (i > 0)
      backward.steps.emplace_back(
          Post{maker.transfer(i, i - 1, kBackBefore, 2 * i - 1, slots[at(i - 1)]), {}});
    LoweredStage& stage = program.stages.emplace_back(std::move(maker.stage));
    stage.functions = {forward, backward};
    stage.lifetimes.assign(stage.graph.values.size(), Lifetime::kMicrobatch);
    for (const PipelineCall& call : order[at(i)])
      stage.calls.push_back({call.function == PipelineFunction::kForward ? FunctionKind::kForward
                                                                         : FunctionKind::kBackward,
                             call.microbatch});
    for (int size : times.size_of) {
      const MicrobatchTimes& of = times.sizes[at(size)];
      std::vector<int64_t> table{
          of.stages[at(i)].forward.value / 2, of.stages[at(i)].backward.value / 2, 0, 0, 0, 0};
      for (int side : {0, 1}) {
        if (i - 1 + side < 0 || i + side >= stages) continue;
        const BoundaryTimes& boundary = of.boundaries[at(i - 1 + side)];
        table[at(kOnBefore + 2 * side)] = boundary.forward.value / 4;
        table[at(kBackBefore + 2 * side)] = boundary.backward.value / 4;
      }
      stage.tables.push_back({table});
    }
  }
  return program;
}

Simulation simulate(const PipelineOrder& order,
                    const PipelineTimes& times,
                    const std::vector<int>& slots,
                    const SimulateOptions& options = {}) {
  return simulate(program_of(order, times, slots), CostModel(cluster_of(times)), options);
}

// Returns times in multiples of 4 ns, one latency for all sizes of micro-batches, and messages of
// at least a byte: an empty one has no latency.
ScheduleRequest in_fours(ScheduleRequest request) {
  for (MicrobatchTimes& size : request.times.sizes) {
    for (StageTimes& stage : size.stages) {
      stage.forward = stage.forward * 4;
      stage.backward = stage.backward * 4;
    }
    for (size_t b = 0; b < size.boundaries.size(); ++b) {
      BoundaryTimes& boundary = size.boundaries[b];
      boundary.forward = std::max(boundary.forward * 4, Nanoseconds{4});
      boundary.backward = std::max(boundary.backward * 4, Nanoseconds{4});
      boundary.latency = request.times.sizes[0].boundaries[b].latency;
    }
  }
  return request;
}

std::vector<std::vector<TimeSpan>> calls_of(const Simulation& simulation, size_t stages) {
  std::vector<std::vector<TimeSpan>> calls(stages);
  for (const TraceEvent& event : simulation.trace.events)
    if (event.category == "forward" || event.category == "backward")
      calls[at(event.device)].push_back({event.start, event.start + event.duration});
  for (auto& of_stage : calls)
    std::stable_sort(of_stage.begin(), of_stage.end(), [](const TimeSpan& a, const TimeSpan& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
  return calls;
}

// Returns a slot per micro-batch, so no call waits for one.
std::vector<int> all_slots(const PipelineTimes& times) {
  return std::vector<int>(times.num_stages() - 1, times.num_microbatches());
}

TEST(SimulatePipeline, EverySchedulesCallsAreWhenTheTimerSays) {
  int several = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const ScheduleRequest request = in_fours(random_request(seed, 5, 12));
    several += request.times.num_stages() > 1;
    for (const Schedule& schedule : schedules()) {
      SCOPED_TRACE(::testing::Message() << seed << " " << schedule.name);
      const PipelineOrder order = schedule.order(request);
      const Timing timing = time_calls(order, request.times);
      const Simulation simulation =
          simulate(order, request.times, all_slots(request.times), {.trace = true});
      ASSERT_EQ(simulation.step, timing.finish);
      ASSERT_TRUE(calls_of(simulation, order.size()) == timing.calls);
      for (size_t i = 0; i < order.size(); ++i) {
        ASSERT_EQ(simulation.devices[i].computes, timing.busy[i]);
        ASSERT_EQ(simulation.devices[i].waits, timing.idle[i]);
        for (size_t k = 0; k < order[i].size(); ++k)
          ASSERT_EQ(simulation.devices[i].calls[k].ends, timing.calls[i][k].end);
      }
      ASSERT_EQ(simulation.bubble(), timing.bubble());
    }
  }
  EXPECT_GT(several, 200);
}

// With the slots of the lowering, warm-up calls may wait for one, but less than in the timer. There
// a message has its slot until it is read. Here it has one at its sender until it has left, and
// another at its destination.
TEST(SimulatePipeline, WaitsForSlotsNoLongerThanTheTimerDoes) {
  int equal = 0, all = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const ScheduleRequest request = in_fours(random_request(seed, 5, 12));
    for (const Schedule& schedule : schedules()) {
      SCOPED_TRACE(::testing::Message() << seed << " " << schedule.name);
      const PipelineOrder order = schedule.order(request);
      const std::vector<int> slots = message_slots(peak_in_flight(order));
      const Nanoseconds step = simulate(order, request.times, slots).step;
      const Nanoseconds at_least = time_calls(order, request.times).finish;
      ASSERT_GE(step, at_least);
      ASSERT_LE(step, time_calls(order, request.times, slots).finish);
      equal += step == at_least;
      ++all;
    }
  }
  EXPECT_GT(equal, all * 99 / 100);
}

// The simulation gives back the times from which the program was built.
TEST(SimulatePipeline, SchedulesAreChosenFromTheTimesOfStagesAndBoundaries) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const ScheduleRequest request = in_fours(random_request(seed, 5, 12));
    if (request.times.num_stages() == 1) continue;
    SCOPED_TRACE(seed);
    const PipelineOrder order = schedules()[seed % schedules().size()].order(request);
    const Program program = program_of(order, request.times, all_slots(request.times));
    EXPECT_EQ(in_flight(program), peak_in_flight(order));
    const CostModel costs(cluster_of(request.times));
    const ScheduleRequest found =
        schedule_request(program, 0, costs, simulate(program, costs, {.memory = true}));
    ASSERT_EQ(found.times.num_microbatches(), request.times.num_microbatches());
    for (size_t m = 0; m < request.times.size_of.size(); ++m) {
      const MicrobatchTimes& a = found.times.sizes[at(found.times.size_of[m])];
      const MicrobatchTimes& b = request.times.sizes[at(request.times.size_of[m])];
      for (size_t i = 0; i < b.stages.size(); ++i) {
        EXPECT_EQ(a.stages[i].forward, b.stages[i].forward);
        EXPECT_EQ(a.stages[i].backward, b.stages[i].backward);
      }
      for (size_t i = 0; i < b.boundaries.size(); ++i) {
        EXPECT_EQ(a.boundaries[i].forward, b.boundaries[i].forward);
        EXPECT_EQ(a.boundaries[i].backward, b.boundaries[i].backward);
        EXPECT_EQ(a.boundaries[i].latency, b.boundaries[i].latency);
      }
    }
    // No values are saved from forward to backward, so all micro-batches fit.
    EXPECT_THAT(found.max_in_flight, ::testing::Each(request.times.num_microbatches()));
  }
}

constexpr int kStageTime = 3'000'000;  // one unit: a third forward, the rest backward

struct Row {
  std::vector<double> transfers;
  double one_f_one_b, eager, published, ideal;
};

// Equal stages, F:B = 1:2, 64 micro-batches: as in h1f1b_test.cpp, for programs.
TEST(SimulatePipeline, TableOfEqualStages) {
  const std::vector<Row> rows = {
      {{0.05}, 68.2, 65.1, 68.2, 65.1},
      {{0.3}, 84.2, 65.6, 65.6, 65.6},
      {{0.5}, 97.0, 66.0, 66.0, 66.0},
      {{0.8}, 116.2, 79.2, 66.6, 66.6},
      {{1.0}, 129.0, 88.0, 67.0, 67.0},
      {{.02, .6, .02}, 105.52, 71.77, 69.52, 68.28},
      {{.02, .3, .02}, 86.32, 67.68, 68.92, 67.68},
      {{.01, .01, .01, .45, .01, .01, .01}, 99.08, 72.02, 72.96, 72.02},
      {{.01, .01, .9, .01, .01}, 124.94, 87.24, 71.72, 72.04},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(::testing::PrintToString(row.transfers));
    MicrobatchTimes times;
    times.stages.assign(row.transfers.size() + 1, {{kStageTime / 3}, {kStageTime / 3 * 2}});
    for (const double c : row.transfers) {
      const Nanoseconds time{static_cast<int64_t>(c * kStageTime + 0.5)};
      times.boundaries.push_back({time, time, {}});
    }
    const ScheduleRequest request{equal_microbatches(std::move(times), 64), {}, {}};
    const auto units = [&](const std::vector<int>& counts) {
      const Simulation simulation =
          simulate(order_calls(counts, 64), request.times, message_slots(counts));
      return static_cast<double>(simulation.step.value) / kStageTime;
    };
    const int stages = static_cast<int>(row.transfers.size()) + 1;
    EXPECT_NEAR(units(one_f_one_b(stages, 64)), row.one_f_one_b, 0.005001);
    EXPECT_NEAR(units(eager_one_f_one_b(stages, 64)), row.eager, 0.005001);
    EXPECT_NEAR(units(published_in_flight(request)), row.published, 0.005001);
    EXPECT_NEAR(units(ideal_in_flight(request)), row.ideal, 0.005001);
  }
}

// If no two transfers share a link, the estimate is exact for any waits.
TEST(SimulatePipeline, EstimateIsExactWithoutSharedLinks) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const ScheduleRequest request = in_fours(random_request(seed, 5, 12));
    const PipelineOrder order = schedules()[seed % schedules().size()].order(request);
    const std::vector<int> slots = message_slots(peak_in_flight(order));
    const Simulation exact = simulate(order, request.times, slots, {.trace = true});
    const Simulation estimated =
        simulate(order, request.times, slots, {.exact_messages = 0, .trace = true});
    EXPECT_EQ(estimated.exact, order.size() == 1);
    ASSERT_EQ(estimated.step, exact.step);
    ASSERT_TRUE(calls_of(estimated, order.size()) == calls_of(exact, order.size()));
  }
}

}  // namespace
}  // namespace medley
