#pragma once

// All devices of a program as threads of one process: their interpreters over the in-process
// transport.

#include <memory>

#include "medley/runtime/device_threads.h"
#include "medley/runtime/interpreter.h"

namespace medley {

struct LocalRunOptions {
  std::vector<std::string> device_names;      // by device of the cluster; "device 3" where missing
  std::chrono::milliseconds timeout{600000};  // of a wait
  std::chrono::milliseconds patience{10000};  // for the others after a failure
  bool trace = false;
  bool keep_gradients = false;
  // Makes the transport of a device from the shared one, for emulation and tests.
  std::function<std::shared_ptr<Transport>(int device, std::shared_ptr<Transport>)> decorate;
};

class LocalRun {
 public:
  // One executor for all devices or one for each, stage by stage in the order of
  // LoweredStage::devices.
  LocalRun(Program program,
           std::vector<std::shared_ptr<Executor>> executors,
           std::shared_ptr<Clock> clock,
           const LocalRunOptions& options = {});
  ~LocalRun();

  int num_devices() const;
  // Between steps: for loading, batches and reading back.
  Interpreter& device(int i);
  // Runs one step on all devices. The first failure ends it for all and is thrown.
  std::vector<StepReport> run_step();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::unique_ptr<DeviceThreads> threads_;
};

// Returns the events of all reports as one trace.
Trace collect(const std::vector<StepReport>& reports, std::vector<std::string> device_names);

}  // namespace medley
