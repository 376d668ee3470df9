#include "medley/runtime/interpreter.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "medley/base/error.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/null_executor.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tensor is one number: an op adds its operands, an all-reduce and an all-gather add over the
// devices. Numbers show the data flow; the null executor checks sizes.
class AddingExecutor final : public Executor {
 public:
  struct Numbers final : Frame {
    std::map<ValueId, Buffer> values;
  };
  struct Ops final : PreparedSegment {
    Ops(const LoweredStage& a, const Segment& b) : stage(a), segment(b) {}
    const LoweredStage& stage;
    const Segment& segment;
  };
  static Buffer number(double value) { return std::make_shared<double>(value); }
  static double number(const Buffer& buffer) { return *static_cast<double*>(buffer.get()); }

  std::unique_ptr<Frame> make_frame(const LoweredStage&) override {
    return std::make_unique<Numbers>();
  }
  std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                           const Segment& segment,
                                           const std::vector<int64_t>&) override {
    return std::make_unique<Ops>(stage, segment);
  }
  void run(PreparedSegment& prepared, Frames frames) override {
    const auto& [stage, segment] = static_cast<Ops&>(prepared);
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const Op& op = stage.graph.ops[at(segment.ops[i])];
      double sum = 0;
      for (ValueId value : operands(op)) sum += number(read(stage, frames, value));
      const Buffer before = read(stage, frames, op.results[0]);
      if (op.name == "medley.accumulate" && before) sum += number(before);
      write(stage, frames, op.results[0], number(sum));
      for (ValueId value : segment.dies[i]) write(stage, frames, value, nullptr);
    }
  }
  Buffer read(const LoweredStage& stage, Frames frames, ValueId value) override {
    return slot(stage, frames, value);
  }
  void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) override {
    slot(stage, frames, value) = std::move(buffer);
  }
  std::vector<std::vector<Buffer>> combine(const GradientSync&,
                                           DType,
                                           const std::vector<std::vector<Buffer>>&) override {
    throw Error(Blame::kUs, "no gradient syncs here");
  }
  std::vector<std::vector<Buffer>> combine(CommunicationKind,
                                           Reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>&) override {
    double sum = 0;
    for (const auto& device : inputs) sum += number(device[0]);
    return std::vector<std::vector<Buffer>>(inputs.size(), {number(sum)});
  }

 private:
  static Buffer& slot(const LoweredStage& stage, Frames frames, ValueId value) {
    const bool microbatch = stage.lifetimes[at(value)] == Lifetime::kMicrobatch;
    return static_cast<Numbers*>(microbatch ? frames.microbatch : frames.run)->values[value];
  }
};

// Runs `body(device)` on one thread per device.
void on_devices(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int device = 0; device < count; ++device) threads.emplace_back(body, device);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Two devices with w = 1, two micro-batches with x = 10, 20 and 100, 200:
//   h = x + w, g = sum of h over the devices: 112 and 222; loss = 334;
//   gradients of device 0: (112 + 11) + (222 + 21) = 366; of device 1: (112 + 101) + (222 + 201) =
//   636; synced = 1002 = norm; w = 1 + 1002.
// The second step starts only from that w.
TEST(Interpreter, TrainsTwoDevices) {
  const ExampleProgram example = data_parallel_program({1, 1}, 2);
  SteadyClock clock;
  AddingExecutor executor;
  InProcessTransport transport(executor, clock, milliseconds(5000));
  on_devices(2, [&](int device) {
    Interpreter interpreter(example.program, 0, device, executor, transport, clock);
    interpreter.write(example.w, AddingExecutor::number(1));
    const double x = device == 0 ? 10 : 100;
    for (double w : {1.0, 1003.0}) {
      interpreter.set_batch(0, {{example.x, AddingExecutor::number(x)}});
      interpreter.set_batch(1, {{example.x, AddingExecutor::number(2 * x)}});
      interpreter.run_step();
      const double loss = 330 + 4 * w, gradients = 2 * loss + 330 + 4 * w;
      EXPECT_EQ(AddingExecutor::number(interpreter.read(example.loss)), loss);
      EXPECT_EQ(AddingExecutor::number(interpreter.read(example.norm)), gradients);
      EXPECT_EQ(AddingExecutor::number(interpreter.read(example.w)), w + gradients);
      EXPECT_EQ(interpreter.read(example.synced), nullptr) << "gradients are kept on request only";
    }
  });
}

// Loses the awaited result of one device, after the others have it.
class LosingTransport final : public Transport {
 public:
  LosingTransport(Transport& inner, std::string name, int device)
      : inner_(inner), name_(std::move(name)), device_(device) {}
  std::unique_ptr<Pending> post(Exchange exchange) override {
    const bool is_lost = exchange.name == name_ && exchange.me == device_;
    return std::make_unique<Lost>(inner_.post(std::move(exchange)), is_lost);
  }
  void abort(const std::string& cause) override { inner_.abort(cause); }

 private:
  struct Lost final : Pending {
    Lost(std::unique_ptr<Pending> a, bool b) : inner(std::move(a)), is_lost(b) {}
    std::vector<Buffer> wait() override {
      std::vector<Buffer> outputs = inner->wait();
      if (is_lost) throw Error(Blame::kEnvironment, "connection closed");
      return outputs;
    }
    std::unique_ptr<Pending> inner;
    bool is_lost;
  };
  Transport& inner_;
  std::string name_;
  int device_;
};

// The same two devices. Device 1 contributes to the commit but does not receive its result. Given
// the result, it finishes alone with the same values.
TEST(Interpreter, AStepThatFailsAtItsCommitIsFinishedWithWhatTheCommitGaveToOthers) {
  ExampleProgram example = data_parallel_program({1, 1}, 2);
  example.program.stages[0].commit = 1;
  SteadyClock clock;
  AddingExecutor executor;
  InProcessTransport inner(executor, clock, milliseconds(5000));
  LosingTransport transport(inner, "reduce w", 1);
  Buffer committed;
  std::promise<void> is_known;
  on_devices(2, [&](int device) {
    InterpreterOptions options;
    options.keep_undo = true;
    Interpreter interpreter(example.program, 0, device, executor, transport, clock, options);
    interpreter.write(example.w, AddingExecutor::number(1));
    const double x = device == 0 ? 10 : 100;
    interpreter.set_batch(0, {{example.x, AddingExecutor::number(x)}});
    interpreter.set_batch(1, {{example.x, AddingExecutor::number(2 * x)}});
    if (device == 0) {
      interpreter.run_step();
      EXPECT_EQ(interpreter.reached(), Reached::kDone);
      committed = interpreter.committed().at(0);
      is_known.set_value();
    } else {
      EXPECT_THAT(error_of([&] { interpreter.run_step(); }), HasSubstr("connection closed"));
      EXPECT_EQ(interpreter.reached(), Reached::kAtCommit);
      EXPECT_EQ(AddingExecutor::number(interpreter.read(example.w)), 1);
      is_known.get_future().wait();
      interpreter.finish_step({committed});
      EXPECT_EQ(interpreter.reached(), Reached::kDone);
    }
    EXPECT_EQ(AddingExecutor::number(interpreter.read(example.w)), 1003);
    EXPECT_EQ(AddingExecutor::number(interpreter.read(example.loss)), 334);
  });
}

TEST(Interpreter, AStepThatFailsBeforeItsCommitHasChangedNothing) {
  ExampleProgram example = data_parallel_program({1, 1}, 2);
  example.program.stages[0].commit = 1;
  SteadyClock clock;
  AddingExecutor executor;
  InProcessTransport inner(executor, clock, milliseconds(200));
  LosingTransport transport(inner, "gather h", 1);
  on_devices(2, [&](int device) {
    InterpreterOptions options;
    options.keep_undo = true;
    Interpreter interpreter(example.program, 0, device, executor, transport, clock, options);
    interpreter.write(example.w, AddingExecutor::number(1));
    interpreter.set_batch(0, {{example.x, AddingExecutor::number(10)}});
    interpreter.set_batch(1, {{example.x, AddingExecutor::number(20)}});
    EXPECT_THAT(error_of([&] { interpreter.run_step(); }), HasSubstr(":"));
    EXPECT_EQ(interpreter.reached(), Reached::kBefore);
    interpreter.undo(1);
    EXPECT_EQ(interpreter.reached(), Reached::kDone);
    EXPECT_EQ(AddingExecutor::number(interpreter.read(example.w)), 1);
  });
}

BatchInputs null_batch(const ExampleProgram& example, int64_t rows) {
  return {{example.x, null_buffer(DType::kF32, {rows, 4})}};
}

// Records its frames, for inspection after a step.
class WatchedExecutor : public NullExecutor {
 public:
  std::unique_ptr<Frame> make_frame(const LoweredStage& stage) override {
    auto frame = NullExecutor::make_frame(stage);
    frames.push_back(frame.get());
    return frame;
  }
  std::vector<int64_t> num_values_left() const {
    std::vector<int64_t> counts;
    for (Frame* frame : frames) counts.push_back(num_values(*frame));
    return counts;
  }
  std::vector<Frame*> frames;  // the first is the run frame
};

struct OneDevice {
  explicit OneDevice(ExampleProgram an_example, InterpreterOptions options = {})
      : example(std::move(an_example)),
        transport(executor, clock, milliseconds(20)),
        interpreter(example.program, 0, 0, executor, transport, clock, std::move(options)) {
    if (example.w != kNone) interpreter.write(example.w, null_buffer(DType::kF32, {4}));
  }
  StepReport step() {
    const LoweredStage& stage = example.program.stages[0];
    for (size_t i = 0; i < stage.tables.size(); ++i)
      interpreter.set_batch(static_cast<int>(i), null_batch(example, stage.tables[i][0][0]));
    return interpreter.run_step();
  }

  ExampleProgram example;
  WatchedExecutor executor;
  SteadyClock clock;
  InProcessTransport transport;
  Interpreter interpreter;
};

// The run frame keeps w, loss and norm; two micro-batches are in flight at most.
TEST(Interpreter, FreesUnreadValues) {
  OneDevice device(data_parallel_program({2}, 5));
  device.step();
  EXPECT_THAT(device.executor.num_values_left(), ElementsAre(3, 0, 0));
}

TEST(Interpreter, KeepsGradientsOnRequest) {
  OneDevice device(data_parallel_program({2}, 1), {.device_name = {}, .keep_gradients = true});
  device.step();
  EXPECT_NE(device.interpreter.read(device.example.synced), nullptr);
  EXPECT_THAT(device.executor.num_values_left(), ElementsAre(4, 0));
}

// A program whose `dies` lists are empty must not grow from micro-batch to micro-batch.
TEST(Interpreter, FreesWhatTheProgramForgets) {
  ExampleProgram example = data_parallel_program({2}, 2);
  for (Function& function : example.program.stages[0].functions)
    for (Step& step : function.steps)
      if (auto* segment = std::get_if<Segment>(&step))
        for (auto& dies : segment->dies) dies.clear();
  OneDevice device(std::move(example));
  device.step();
  EXPECT_THAT(device.executor.num_values_left(), ElementsAre(3, 0, 0));
}

// Four functions, of which forward has two segments, and all micro-batches have one table.
TEST(Interpreter, EqualTablesArePreparedOnce) {
  OneDevice device(data_parallel_program({2}, 7));
  EXPECT_EQ(device.executor.num_prepared(), 5);
}

// A program that reads no row numbers: preparation depends only on the count of rows.
TEST(Interpreter, MicrobatchesOfTwoSizesArePreparedTwice) {
  ExampleProgram example = data_parallel_program({2}, 512);
  LoweredStage& stage = example.program.stages[0];
  stage.graph.symbols.push_back("first_row");
  int64_t row = 0;
  for (auto& tables : stage.tables) {
    const int64_t rows = row < 300 ? 3 : 2;
    tables = {{rows, rows, rows, row}};
    row += rows;
  }
  OneDevice device(std::move(example));
  // Forward has two segments, backward one; one micro-batch is the last, and the update has its
  // own.
  EXPECT_EQ(device.executor.num_prepared(), 2 * (2 + 1) + 1 + 1);
}

TEST(Interpreter, UnequalMicrobatchesHaveTheirOwnSizes) {
  ExampleProgram example = data_parallel_program({2}, 2);
  example.program.stages[0].tables[1] = {{3, 3, 3}};
  OneDevice device(std::move(example));
  EXPECT_NO_THROW(device.step());
}

// A last batch with fewer rows: the preparation of the first size is reused afterwards.
TEST(Interpreter, AnotherSizeIsPreparedOnce) {
  OneDevice device(data_parallel_program({2}, 3));
  const ExampleProgram fewer = data_parallel_program({1}, 3);
  const std::shared_ptr<const Program> smaller = std::make_shared<const Program>(fewer.program);
  const auto step = [&](int64_t rows) {
    for (int m = 0; m < 3; ++m) device.interpreter.set_batch(m, null_batch(device.example, rows));
    device.interpreter.run_step();
    return device.executor.num_prepared();
  };
  const int64_t once = step(2);
  device.interpreter.use(smaller);
  const int64_t both = step(1);
  EXPECT_GT(both, once);
  EXPECT_EQ(step(1), both);
  device.interpreter.use({std::shared_ptr<void>(), &device.example.program});
  EXPECT_EQ(step(2), both);
  EXPECT_NE(device.interpreter.read(device.example.w), nullptr);
}

TEST(Interpreter, MissingBatchInputIsNamed) {
  OneDevice device(data_parallel_program({2}, 2));
  device.interpreter.set_batch(0, null_batch(device.example, 2));
  EXPECT_EQ(error_of([&] { device.interpreter.run_step(); }),
            "device 0: micro-batch 1: the batch has no tensor \"x\"");
}

TEST(Interpreter, ErrorsNameDeviceStageCallAndOp) {
  OneDevice device(data_parallel_program({2}, 2), {.device_name = "a100 0"});
  device.interpreter.set_batch(0, null_batch(device.example, 2));
  device.interpreter.set_batch(1, null_batch(device.example, 1));
  EXPECT_EQ(error_of([&] { device.interpreter.run_step(); }),
            "a100 0: stage 0: forward 1: test.scale: operand %1: expected 8 elements, got 4");
  EXPECT_EQ(device.interpreter.place().call, "forward 1");
}

TEST(Interpreter, ErrorsNameTheExchange) {
  OneDevice device(data_parallel_program({2, 1}, 1));
  EXPECT_EQ(error_of([&] { device.step(); }),
            "device 0: stage 0: forward 0: gather h: over devices [0, 1]: not posted "
            "within 20 ms by devices [1]");
}

TEST(Interpreter, RefusesStepsAfterAFailedOne) {
  OneDevice device(data_parallel_program({2, 1}, 1));
  EXPECT_THAT(error_of([&] { device.step(); }), HasSubstr("not posted"));
  EXPECT_THAT(error_of([&] { device.step(); }), HasSubstr("a step after one that failed"));
}

TEST(Interpreter, ForgottenWaitIsAnError) {
  ExampleProgram example = data_parallel_program({2}, 1);
  std::vector<Step>& steps = example.program.stages[0].functions[3].steps;
  steps.clear();
  example.program.stages[0].functions[3].assigns.clear();
  OneDevice device(std::move(example));
  EXPECT_THAT(error_of([&] { device.step(); }), HasSubstr("reduce w: posted but not awaited"));
}

// Every op takes 10 ns by a stepped clock, so all times are exact.
TEST(Interpreter, TraceShowsSegmentsWaitsAndExchanges) {
  const ExampleProgram example = data_parallel_program({2}, 1);
  ManualClock clock;
  NullExecutor executor([](const auto&, OpId, const auto&) { return Nanoseconds{10}; }, clock);
  InProcessTransport transport(executor, clock, milliseconds(20));
  InterpreterOptions options;
  options.trace = true;
  Interpreter interpreter(example.program, 0, 0, executor, transport, clock, options);
  interpreter.write(example.w, null_buffer(DType::kF32, {4}));
  interpreter.set_batch(0, null_batch(example, 2));
  const StepReport report = interpreter.run_step();
  EXPECT_EQ(report.end - report.start, Nanoseconds{70});
  std::vector<std::string> events;
  for (const TraceEvent& event : report.events)
    events.push_back(event.category + " " + std::to_string(event.start.value) + "+" +
                     std::to_string(event.duration.value));
  EXPECT_THAT(events,
              ElementsAre("forward 0+10",
                          "waiting 10+0",
                          "all_gather 10+0",
                          "forward 10+20",
                          "backward 30+20",
                          "update 50+20"));
}

}  // namespace
}  // namespace medley
