#pragma once

// The devices of this process, each with its executor, transport, clock, interpreter and thread.
// Only this module decides which of these are emulated. Knows nothing of tensors: the caller gives
// executors and transports.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "medley/base/clock.h"
#include "medley/cluster/cluster.h"
#include "medley/program/groups.h"
#include "medley/program/program.h"
#include "medley/runtime/device_threads.h"
#include "medley/runtime/interpreter.h"
#include "medley/worker/emulated_cluster.h"

namespace medley {

// The factories of a device's parts.
struct DeviceParts {
  // For the i-th device of this process.
  std::function<std::shared_ptr<Executor>(int i)> make_executor;
  // Shared by the devices of this process; receives the first one's executor. Null: there are no
  // other devices, and they exchange among themselves.
  std::function<std::shared_ptr<Transport>(Executor&, Clock&)> make_transport = {};
  // Called on a device's thread before each step; may be null.
  std::function<void()> enter_thread = {};
};

struct DeviceOptions {
  std::vector<int> own;  // indices into all stages' devices; empty: all, as threads here
  std::chrono::milliseconds timeout{600000};  // per wait of threads of this process
  std::chrono::milliseconds patience{10000};  // for the others after a failure
  bool keep_gradients = false;
  bool keep_undo = false;
  std::function<void(const Place&)> on_step = {};  // for tests (runtime/interpreter.h)
  bool trace = false;
  std::optional<Emulation> emulation;
};

class Devices {
 public:
  Devices(std::shared_ptr<const Program> program,
          const Cluster& cluster,
          const DeviceParts& parts,
          const DeviceOptions& options = {});
  // An abandoned thread keeps its data while it runs.
  ~Devices();

  const Program& program() const;
  int size() const;
  int number(int i) const;  // index among all stages' devices
  DevicePlace place(int i) const;
  // Between steps: for loading, batches and reading back.
  Interpreter& interpreter(int i);
  // Returns whether every device of the plan has its own process.
  bool are_of_one_process_each() const;

  // Uses this program on all devices of this process from the next step on (Interpreter::use).
  void use(const std::shared_ptr<const Program>& program);
  int64_t steps() const;  // successful ones
  // Runs one step on all devices. Throws the first failure. Calls `poll` on this thread meanwhile.
  std::vector<StepReport> run_step(const std::function<void()>& poll = {});
  // Returns the peak bytes of each emulated device so far; empty for real ones.
  std::vector<int64_t> peak_bytes() const;
  // Ends every wait of these devices with an error, now and from now on.
  void abort(const std::string& cause);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::unique_ptr<DeviceThreads> threads_;
};

}  // namespace medley
