// Workers like the processes of a run, one device each, here as threads, with a store and a
// transport in memory between them.

#include "medley/worker/worker.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/testing/example_program.h"
#include "medley/testing/in_memory_store.h"
#include "medley/testing/null_parts.h"

namespace medley {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<int64_t> kRows{1, 0, 3};

class LastExecutor final : public NullExecutor {
 public:
  void run(PreparedSegment&, Frames) override { throw Error(Blame::kEnvironment, "device lost"); }
};

// The shared state of a run's processes, and the outcome of each.
struct Processes {
  ExampleProgram example = data_parallel_program(kRows, 2);
  Cluster cluster = nameless_cluster({"a0", "b0", "b1"});
  InMemoryStore store;
  NullExecutor combine;
  SteadyClock clock;
  std::shared_ptr<Transport> transport =
      std::make_shared<InProcessTransport>(combine, clock, seconds(60));
  std::vector<int> steps{1, 1, 1};             // [device]
  std::atomic<int> made = 0;                   // executors
  std::vector<std::string> found{"", "", ""};  // [device] its error
  std::function<void(int device, WorkerInput&, WorkerParts&)> change = [](int, auto&, auto&) {};

  std::unique_ptr<Worker> start(int device) {
    WorkerInput input;
    input.program = share(example.program);
    input.cluster = cluster;
    input.devices.own = {device};
    input.membership.timeout = seconds(60);
    input.membership.exit = [](const std::string&, Blame) {};
    WorkerParts parts;
    parts.devices.make_executor = [this](int) {
      ++made;
      return std::make_shared<NullExecutor>();
    };
    parts.devices.make_transport = [this](Executor&, Clock&) { return transport; };
    parts.make_store = [this, device] { return store.connect(device); };
    change(device, input, parts);
    return std::make_unique<Worker>(input, parts);
  }

  void step(int device) {
    const std::unique_ptr<Worker> worker = start(device);
    Interpreter& interpreter = worker->devices().interpreter(0);
    interpreter.write(example.w, null_buffer(DType::kF32, {4}));
    for (int m = 0; m < 2; ++m)
      interpreter.set_batch(m, {{example.x, null_buffer(DType::kF32, {kRows[at(device)], 4})}});
    for (int i = 0; i < steps[at(device)]; ++i) worker->run_step([] { return false; });
    worker->finish();
  }

  const std::vector<std::string>& run() {
    std::vector<std::thread> threads;
    for (int device = 0; device < 3; ++device)
      threads.emplace_back([this, device] {
        try {
          step(device);
        } catch (const std::exception& error) {
          found[at(device)] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return found;
  }
};

TEST(Worker, ProcessesTrainTogether) {
  Processes processes;
  EXPECT_THAT(processes.run(), ElementsAre("", "", ""));
}

TEST(Worker, KnowsItsPlaceAndAllDevices) {
  ExampleProgram example = data_parallel_program(kRows, 2);
  WorkerInput input;
  input.program = share(example.program);
  input.cluster = nameless_cluster({"a0", "b0", "b1"});
  input.devices.own = {2};
  WorkerParts parts;
  parts.devices = null_parts();
  const Worker worker(input, parts);
  EXPECT_EQ(worker.devices().place(0).index, 2);
  EXPECT_THAT(worker.device_names(), ElementsAre("a0", "b0", "b1"));
  EXPECT_EQ(worker.memory().size(), 3u);
}

TEST(Worker, RefusesAProgramThatCannotRun) {
  Processes processes;
  processes.example.program.stages[0].communications[0].receive[1] = Size(5);
  EXPECT_THAT(processes.run(), Each(StartsWith("program: stage 0: gather h: device 0: ")));
  EXPECT_EQ(processes.made, 0);
}

// A process with another program may use other groups: devices are created only after agreement.
TEST(Worker, WithDifferentProgramsMakesNoDevices) {
  Processes processes;
  processes.change = [&](int device, WorkerInput& input, WorkerParts&) {
    if (device != 1) return;
    Program other = processes.example.program;
    other.graph_hash = "another";
    input.program = share(other);
  };
  EXPECT_THAT(processes.run(), Each(HasSubstr("devices 0 and 1 have different graphs")));
  EXPECT_EQ(processes.made, 0);
}

TEST(Worker, OneFailureIsThatOfAll) {
  Processes processes;
  processes.change = [](int device, WorkerInput&, WorkerParts& parts) {
    if (device == 1)
      parts.devices.make_executor = [](int) { return std::make_shared<LastExecutor>(); };
  };
  EXPECT_THAT(processes.run(), Each(AllOf(HasSubstr("b0: "), HasSubstr("device lost"))));
}

// Its loop is shorter than the others', and its process lives on.
TEST(Worker, WaitForAFinishedWorkerIsReported) {
  Processes processes;
  processes.steps = {1, 0, 1};
  EXPECT_THAT(processes.run(),
              ElementsAre(HasSubstr("b0 has finished, "), "", HasSubstr("b0 has finished, ")));
}

// The others wait for its first exchange, and would until the time-out.
TEST(Worker, WorkerWithoutDevicesFailsTheOthers) {
  Processes processes;
  processes.change = [](int device, WorkerInput&, WorkerParts& parts) {
    if (device == 2)
      parts.devices.make_executor = [](int) -> std::shared_ptr<Executor> {
        throw Error(Blame::kEnvironment, "no kernels for this card");
      };
  };
  // All share one transport: the first notified process aborts it for those that wait.
  EXPECT_THAT(processes.run(), Each(HasSubstr("no kernels for this card")));
}

}  // namespace
}  // namespace medley
