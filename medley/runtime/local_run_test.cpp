#include "medley/runtime/local_run.h"

#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "medley/base/error.h"
#include "medley/runtime/null_executor.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void set_batch(LocalRun& run, const ExampleProgram& example, const std::vector<int64_t>& rows) {
  const auto microbatches = static_cast<int>(example.program.stages[0].tables.size());
  for (int device = 0; device < run.num_devices(); ++device)
    for (int m = 0; m < microbatches; ++m)
      run.device(device).set_batch(
          m, {{example.x, null_buffer(DType::kF32, {rows[static_cast<size_t>(device)], 4})}});
}

void load(LocalRun& run, const ExampleProgram& example) {
  for (int device = 0; device < run.num_devices(); ++device)
    run.device(device).write(example.w, null_buffer(DType::kF32, {4}));
}

// Sleeps for a random time before each post and each wait.
class DelayingTransport final : public Transport {
 public:
  DelayingTransport(std::shared_ptr<Transport> next, uint32_t seed)
      : next_(std::move(next)), random_(seed) {}
  std::unique_ptr<Pending> post(Exchange exchange) override {
    delay();
    return std::make_unique<Delayed>(*this, next_->post(std::move(exchange)));
  }
  void abort(const std::string& cause) override { next_->abort(cause); }

 private:
  struct Delayed final : Pending {
    Delayed(DelayingTransport& a, std::unique_ptr<Pending> b) : owner(a), next(std::move(b)) {}
    std::vector<Buffer> wait() override {
      owner.delay();
      return next->wait();
    }
    DelayingTransport& owner;
    std::unique_ptr<Pending> next;
  };
  void delay() { std::this_thread::sleep_for(microseconds(random_() % 4 * 20)); }

  std::shared_ptr<Transport> next_;
  std::minstd_rand random_;  // of one device, so of one thread
};

TEST(LocalRun, RandomDelaysNeverDeadlock) {
  const std::vector<int64_t> rows{1, 0, 3};
  const ExampleProgram example = data_parallel_program(rows, 2);
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    LocalRunOptions options;
    options.timeout = milliseconds(20000);
    options.decorate = [&](int device, std::shared_ptr<Transport> shared) {
      return std::make_shared<DelayingTransport>(shared, 3 * seed + static_cast<uint32_t>(device));
    };
    LocalRun run(example.program,
                 {std::make_shared<NullExecutor>()},
                 std::make_shared<SteadyClock>(),
                 options);
    load(run, example);
    for (int step = 0; step < 2; ++step) {
      set_batch(run, example, rows);
      ASSERT_NO_THROW(run.run_step()) << "seed " << seed;
    }
  }
}

// Stops running ops after some, as a device whose process was killed or whose driver hangs: it
// throws if it is to fail, or takes no more part in communication.
class DyingExecutor final : public NullExecutor {
 public:
  explicit DyingExecutor(int ops_left) : ops_left_(ops_left) {}
  void run(PreparedSegment& segment, Frames frames) override {
    if (ops_left_-- <= 0) throw Error(Blame::kEnvironment, "device lost");
    NullExecutor::run(segment, frames);
  }

 private:
  int ops_left_;
};

// Whenever it dies, everybody ends at once with its cause, not with a time-out.
TEST(LocalRun, DeadDeviceIsTheCauseForAll) {
  const std::vector<int64_t> rows{1, 2, 3};
  const ExampleProgram example = data_parallel_program(rows, 2);
  for (int ops = 0; ops < 6; ++ops) {
    LocalRunOptions options;
    options.device_names = {"a0", "b0", "b1"};
    LocalRun run(example.program,
                 {std::make_shared<NullExecutor>(),
                  std::make_shared<DyingExecutor>(ops),
                  std::make_shared<NullExecutor>()},
                 std::make_shared<SteadyClock>(),
                 options);
    load(run, example);
    set_batch(run, example, rows);
    try {
      run.run_step();
      FAIL() << ops;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kEnvironment);
      EXPECT_THAT(
          error.what(),
          AllOf(HasSubstr("b0: stage 0: "), HasSubstr(": device lost"), Not(HasSubstr("a0"))));
    }
  }
}

// Swallows one exchange of its device, which therefore never comes to the meeting.
class LosingTransport final : public Transport {
 public:
  explicit LosingTransport(std::shared_ptr<Transport> next) : next_(std::move(next)) {}
  std::unique_ptr<Pending> post(Exchange exchange) override {
    struct Never final : Pending {
      std::vector<Buffer> wait() override {
        std::this_thread::sleep_for(milliseconds(500));
        throw Error(Blame::kEnvironment, "never sent");
      }
    };
    if (exchange.name == "reduce w") return std::make_unique<Never>();
    return next_->post(std::move(exchange));
  }
  void abort(const std::string& cause) override { next_->abort(cause); }

 private:
  std::shared_ptr<Transport> next_;
};

TEST(LocalRun, TimeOutNamesDeviceCallExchangeAndPeer) {
  const std::vector<int64_t> rows{1, 2};
  const ExampleProgram example = data_parallel_program(rows, 1);
  LocalRunOptions options;
  options.timeout = milliseconds(50);
  options.decorate = [](int device, std::shared_ptr<Transport> shared) {
    return device == 1 ? std::make_shared<LosingTransport>(shared) : shared;
  };
  LocalRun run(example.program,
               {std::make_shared<NullExecutor>()},
               std::make_shared<SteadyClock>(),
               options);
  load(run, example);
  set_batch(run, example, rows);
  try {
    run.run_step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "device 0: stage 0: update: reduce w: device 0: reduce w over devices [0, 1]: not "
                 "posted within 50 ms by devices [1]");
  }
}

TEST(LocalRun, ProgramsThatDifferAreFound) {
  const std::vector<int64_t> rows{1, 2};
  ExampleProgram example = data_parallel_program(rows, 1);
  // Device 1 believes that it has three rows; its table no longer agrees with that of device 0.
  example.program.stages[0].tables[0][1] = {3, 4, 1, 3};
  LocalRun run(
      example.program, {std::make_shared<NullExecutor>()}, std::make_shared<SteadyClock>());
  load(run, example);
  set_batch(run, example, {1, 3});
  try {
    run.run_step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("receive [4, 8]"), HasSubstr("receive [4, 12]")));
  }
}

TEST(LocalRun, TraceHasAllDevices) {
  const std::vector<int64_t> rows{1, 2};
  const ExampleProgram example = data_parallel_program(rows, 1);
  LocalRunOptions options;
  options.trace = true;
  LocalRun run(example.program,
               {std::make_shared<NullExecutor>()},
               std::make_shared<SteadyClock>(),
               options);
  load(run, example);
  set_batch(run, example, rows);
  const Trace trace = collect(run.run_step(), {"a", "b"});
  ASSERT_EQ(trace.events.size(), 2u * 8);
  EXPECT_EQ(trace.events.front().device, 0);
  EXPECT_EQ(trace.events.back().device, 1);
  EXPECT_EQ(trace.events.back().name, "reduce w");
}

}  // namespace
}  // namespace medley
