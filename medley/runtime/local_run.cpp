#include "medley/runtime/local_run.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/runtime/in_process_transport.h"

namespace medley {

// Shared with the threads: one that was given up still finds it.
struct LocalRun::State {
  Program program;
  std::vector<std::shared_ptr<Executor>> executors;
  std::shared_ptr<Clock> clock;
  std::shared_ptr<Transport> shared;
  std::vector<std::shared_ptr<Transport>> transports;  // [device]
  std::vector<std::unique_ptr<Interpreter>> interpreters;
  std::vector<StepReport> reports;

  void add_device(int stage, int index, const LocalRunOptions& options);
};

void LocalRun::State::add_device(int stage, int index, const LocalRunOptions& options) {
  const int device =
      program.stages[static_cast<size_t>(stage)].devices.at(static_cast<size_t>(index));
  const auto in_cluster = static_cast<size_t>(device);
  transports.push_back(options.decorate ? options.decorate(device, shared) : shared);
  InterpreterOptions settings;
  if (in_cluster < options.device_names.size())
    settings.device_name = options.device_names[in_cluster];
  settings.trace = options.trace;
  settings.keep_gradients = options.keep_gradients;
  Executor& executor = *executors.at(executors.size() == 1 ? 0 : interpreters.size());
  interpreters.push_back(std::make_unique<Interpreter>(
      program, stage, index, executor, *transports.back(), *clock, settings));
}

LocalRun::LocalRun(Program program,
                   std::vector<std::shared_ptr<Executor>> executors,
                   std::shared_ptr<Clock> clock,
                   const LocalRunOptions& options)
    : state_(std::make_shared<State>()) {
  state_->program = std::move(program);
  state_->executors = std::move(executors);
  state_->clock = std::move(clock);
  state_->shared = std::make_shared<InProcessTransport>(
      *state_->executors.at(0), *state_->clock, options.timeout);
  std::vector<std::string> names;
  for (size_t stage = 0; stage < state_->program.stages.size(); ++stage) {
    const size_t count = state_->program.stages[stage].devices.size();
    for (size_t i = 0; i < count; ++i) {
      state_->add_device(static_cast<int>(stage), static_cast<int>(i), options);
      names.push_back(state_->interpreters.back()->device_name());
    }
  }
  state_->reports.resize(names.size());
  threads_ = std::make_unique<DeviceThreads>(
      names,
      [state = state_](const std::string& cause) {
        for (const auto& transport : state->transports) transport->abort(cause);
      },
      options.patience);
}

LocalRun::~LocalRun() = default;

int LocalRun::num_devices() const { return static_cast<int>(state_->interpreters.size()); }

Interpreter& LocalRun::device(int i) { return *state_->interpreters.at(static_cast<size_t>(i)); }

std::vector<StepReport> LocalRun::run_step() {
  threads_->run([state = state_](int i) {
    const auto device = static_cast<size_t>(i);
    state->reports[device] = state->interpreters[device]->run_step();
  });
  return std::exchange(state_->reports, std::vector<StepReport>(state_->interpreters.size()));
}

Trace collect(const std::vector<StepReport>& reports, std::vector<std::string> device_names) {
  Trace trace{std::move(device_names), {}};
  for (const StepReport& report : reports)
    trace.events.insert(trace.events.end(), report.events.begin(), report.events.end());
  sort(trace);
  return trace;
}

}  // namespace medley
