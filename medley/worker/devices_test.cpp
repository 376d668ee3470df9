#include "medley/worker/devices.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/testing/example_program.h"
#include "medley/testing/late_transport.h"
#include "medley/testing/null_parts.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void set_batch(Devices& devices, const ExampleProgram& example, const std::vector<int64_t>& rows) {
  const auto microbatches = static_cast<int>(example.program.stages[0].tables.size());
  for (int device = 0; device < devices.size(); ++device)
    for (int m = 0; m < microbatches; ++m)
      devices.interpreter(device).set_batch(
          m, {{example.x, null_buffer(DType::kF32, {rows[at(device)], 4})}});
}

void load(Devices& devices, const ExampleProgram& example) {
  for (int device = 0; device < devices.size(); ++device)
    devices.interpreter(device).write(example.w, null_buffer(DType::kF32, {4}));
}

TEST(Devices, RandomDelaysNeverDeadlock) {
  const std::vector<int64_t> rows{1, 0, 3};
  const ExampleProgram example = data_parallel_program(rows, 2);
  const Cluster cluster = nameless_cluster({"a0", "b0", "b1"});
  for (uint32_t seed = 0; seed < seeds_of(1000); ++seed) {
    Devices devices(share(example.program),
                    cluster,
                    null_parts(
                        [&](std::shared_ptr<Transport> next) {
                          return std::make_shared<LateTransport>(std::move(next), 3 * seed, 1, 80);
                        },
                        milliseconds(20000)));
    load(devices, example);
    for (int step = 0; step < 2; ++step) {
      set_batch(devices, example, rows);
      ASSERT_NO_THROW(devices.run_step()) << "seed " << seed;
    }
  }
}

// Stops running ops after some, like a device with a killed process or a hanging driver. It throws
// if it is to fail, or leaves communication.
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

// If it dies at any point, all devices end immediately with its cause, not with a time-out.
TEST(Devices, DeadDeviceIsTheCauseForAll) {
  const std::vector<int64_t> rows{1, 2, 3};
  const ExampleProgram example = data_parallel_program(rows, 2);
  const Cluster cluster = nameless_cluster({"a0", "b0", "b1"});
  for (int ops = 0; ops < 6; ++ops) {
    Devices devices(share(example.program),
                    cluster,
                    null_parts({std::make_shared<NullExecutor>(),
                                std::make_shared<DyingExecutor>(ops),
                                std::make_shared<NullExecutor>()}));
    load(devices, example);
    set_batch(devices, example, rows);
    try {
      devices.run_step();
      FAIL() << ops;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kEnvironment);
      EXPECT_THAT(
          error.what(),
          AllOf(HasSubstr("b0: stage 0: "), HasSubstr(": device lost"), Not(HasSubstr("a0"))));
    }
  }
}

// Swallows one exchange of device 1, which therefore never arrives.
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
    if (exchange.name == "reduce w" && exchange.me == 1) return std::make_unique<Never>();
    return next_->post(std::move(exchange));
  }
  void abort(const std::string& cause) override { next_->abort(cause); }

 private:
  std::shared_ptr<Transport> next_;
};

TEST(Devices, TimeOutNamesDeviceCallExchangeAndPeer) {
  const std::vector<int64_t> rows{1, 2};
  const ExampleProgram example = data_parallel_program(rows, 1);
  const Cluster cluster = nameless_cluster({"a0", "b0"});
  Devices devices(share(example.program),
                  cluster,
                  null_parts(
                      [](std::shared_ptr<Transport> next) {
                        return std::make_shared<LosingTransport>(std::move(next));
                      },
                      milliseconds(50)));
  load(devices, example);
  set_batch(devices, example, rows);
  try {
    devices.run_step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "a0: stage 0: update: reduce w: over devices [0, 1]: not posted "
                 "within 50 ms by devices [1]");
  }
}

TEST(Devices, ProgramsThatDifferAreFound) {
  const std::vector<int64_t> rows{1, 2};
  ExampleProgram example = data_parallel_program(rows, 1);
  // Device 1 assumes three rows, so its table differs from that of device 0.
  example.program.stages[0].tables[0][1] = {3, 4, 1, 3};
  const Cluster cluster = nameless_cluster({"a0", "b0"});
  Devices devices(share(example.program), cluster, null_parts());
  load(devices, example);
  set_batch(devices, example, {1, 3});
  try {
    devices.run_step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("receive [4, 8]"), HasSubstr("receive [4, 12]")));
  }
}

// Stays in an op until the gate opens, whatever the run's state.
class StuckExecutor final : public NullExecutor {
 public:
  StuckExecutor(std::shared_future<void> gate, std::shared_ptr<std::promise<void>> inside)
      : gate_(std::move(gate)), inside_(std::move(inside)) {}
  void run(PreparedSegment&, Frames) override {
    inside_->set_value();
    gate_.wait();
    throw Error(Blame::kEnvironment, "late");
  }

 private:
  std::shared_future<void> gate_;
  std::shared_ptr<std::promise<void>> inside_;
};

// Fails as soon as another device is stuck.
class FailingExecutor final : public NullExecutor {
 public:
  explicit FailingExecutor(std::shared_future<void> others) : others_(std::move(others)) {}
  void run(PreparedSegment&, Frames) override {
    others_.wait();
    throw Error(Blame::kEnvironment, "device lost");
  }

 private:
  std::shared_future<void> others_;
};

// A device that does not end in time is abandoned. Its thread's data outlives the devices until the
// thread has ended.
TEST(Devices, ResourcesOfAnAbandonedDeviceOutliveTheDevices) {
  std::promise<void> gate;
  auto inside = std::make_shared<std::promise<void>>();
  auto stuck = std::make_shared<StuckExecutor>(gate.get_future().share(), inside);
  const std::weak_ptr<StuckExecutor> used = stuck;
  const Cluster cluster = nameless_cluster({"a0", "b0"});
  const std::vector<int64_t> rows{1, 2};
  {
    const ExampleProgram example = data_parallel_program(rows, 1);
    DeviceOptions options;
    options.patience = milliseconds(20);
    Devices devices(share(example.program),
                    cluster,
                    null_parts({std::make_shared<FailingExecutor>(inside->get_future().share()),
                                std::move(stuck)}),
                    options);
    load(devices, example);
    set_batch(devices, example, rows);
    try {
      devices.run_step();
      FAIL() << "a lost device is an error";
    } catch (const Error& error) {
      EXPECT_THAT(
          error.what(),
          AllOf(HasSubstr("a0: stage 0: "), HasSubstr("device lost; not ended 20 ms later: b0")));
    }
  }
  EXPECT_FALSE(used.expired()) << "its thread is still in it";
  gate.set_value();
  for (int i = 0; i < 1000 && !used.expired(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(used.expired()) << "its thread has ended";
}

TEST(Devices, ReportsHaveTheEventsOfTheirDevice) {
  const std::vector<int64_t> rows{1, 2};
  const ExampleProgram example = data_parallel_program(rows, 1);
  const Cluster cluster = nameless_cluster({"a0", "b0"});
  DeviceOptions options;
  options.trace = true;
  Devices devices(share(example.program), cluster, null_parts(), options);
  load(devices, example);
  set_batch(devices, example, rows);
  const std::vector<StepReport> reports = devices.run_step();
  ASSERT_EQ(reports.size(), 2u);
  for (int device = 0; device < 2; ++device) {
    const std::vector<TraceEvent>& events = reports[at(device)].events;
    ASSERT_EQ(events.size(), 8u);
    for (const TraceEvent& event : events) EXPECT_EQ(event.device, device);
  }
}

}  // namespace
}  // namespace medley
