#pragma once

// The devices of this process, each with its executor, its transport, its clock, its interpreter
// and its thread. The one place that decides which of these are emulated; nobody else can tell.
// Knows nothing of tensors: what computes and what communicates is given.

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

// What devices are made of.
struct DeviceParts {
  // Of the i-th device of this process.
  std::function<std::shared_ptr<Executor>(int i)> make_executor;
  // Shared by the devices of this process; gets the first one's executor. Null: they are all there
  // are, and exchange among themselves.
  std::function<std::shared_ptr<Transport>(Executor&, Clock&)> make_transport = {};
  // Called on a device's thread before each step; may be null.
  std::function<void()> enter_thread = {};
};

struct DeviceOptions {
  std::vector<int> own;  // indices into the devices of all stages, in their order; empty: all, as
                         // threads of this process
  std::chrono::milliseconds timeout{600000};  // of a wait of threads of this process
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
  // A thread that was given up keeps what it uses for as long as it runs.
  ~Devices();

  const Program& program() const;
  int size() const;
  int number(int i) const;  // among those of all stages
  DevicePlace place(int i) const;
  // Between steps: for loading, batches and reading back.
  Interpreter& interpreter(int i);
  // Whether every device of the plan has a process of its own.
  bool are_of_one_process_each() const;

  // From the next step on all devices of this process run this program (Interpreter::use).
  void use(const std::shared_ptr<const Program>& program);
  int64_t steps() const;  // that have succeeded
  // Runs one step on all devices; the first failure is thrown. Meanwhile calls `poll` on this
  // thread.
  std::vector<StepReport> run_step(const std::function<void()>& poll = {});
  // The most bytes that each emulated device has had so far; empty on real ones.
  std::vector<int64_t> peak_bytes() const;
  // Ends every wait of these devices with an error, now and from now on.
  void abort(const std::string& cause);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::unique_ptr<DeviceThreads> threads_;
};

}  // namespace medley
