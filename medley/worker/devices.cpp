#include "medley/worker/devices.h"

#include <algorithm>
#include <future>

#include "medley/base/at.h"
#include "medley/runtime/in_process_transport.h"

namespace medley {

// Shared with the threads, so that abandoned ones still find it. Members are in an order in which
// they may be destroyed.
struct Devices::State {
  std::shared_ptr<const Program> program;
  std::vector<DevicePlace> places;  // all devices of the plan
  std::vector<int> own;             // indices into them
  std::vector<int> numbers;         // likewise, in the cluster
  bool one_each = false;
  int64_t steps = 0;
  std::function<void()> enter_thread;
  SteadyClock steady_clock;
  std::unique_ptr<EmulatedCluster> emulated;
  std::vector<std::shared_ptr<Executor>> executors;
  std::vector<std::unique_ptr<Clock>> clocks;
  std::shared_ptr<Transport> transport;
  std::vector<std::unique_ptr<Interpreter>> interpreters;

  void emulate(const Cluster& cluster, const Emulation& emulation);
  void add(const Cluster& cluster, int i, const DeviceOptions& options);
  StepReport run_step(int i);
  void abort(const std::string& cause);
};

void Devices::State::emulate(const Cluster& cluster, const Emulation& emulation) {
  emulated = std::make_unique<EmulatedCluster>(cluster, emulation);
  std::vector<int> used;
  for (const LoweredStage& stage : program->stages)
    used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  // Emulated time starts after all devices have joined, so one process signs off the unused ones.
  for (int d = 0; own.at(0) == 0 && d < static_cast<int>(cluster.devices.size()); ++d)
    if (std::find(used.begin(), used.end(), d) == used.end()) emulated->leave_out(d);
}

void Devices::State::add(const Cluster& cluster, int i, const DeviceOptions& options) {
  const auto [stage, index] = places[at(own[at(i)])];
  const int device = program->stages[at(stage)].devices[at(index)];
  std::shared_ptr<Executor>& executor = executors[at(i)];
  numbers.push_back(device);
  if (emulated) {
    emulated->join(device);
    executor = emulated->around(std::move(executor), device);
    clocks.push_back(emulated->clock(device));
  } else {
    clocks.push_back(std::make_unique<SteadyClock>());
  }
  InterpreterOptions settings;
  settings.device_name = cluster.devices.at(at(device)).name;
  settings.trace = options.trace;
  settings.keep_gradients = options.keep_gradients;
  settings.keep_undo = options.keep_undo;
  settings.on_step = options.on_step;
  interpreters.push_back(std::make_unique<Interpreter>(
      *program, stage, index, *executor, *transport, *clocks.back(), settings));
}

StepReport Devices::State::run_step(int i) {
  if (enter_thread) enter_thread();
  StepReport report = interpreters[at(i)]->run_step();
  if (emulated) emulated->end_step(numbers[at(i)], steps, static_cast<int>(places.size()), report);
  return report;
}

void Devices::State::abort(const std::string& cause) {
  if (emulated) emulated->abort(cause);
  transport->abort(cause);
}

Devices::Devices(std::shared_ptr<const Program> program,
                 const Cluster& cluster,
                 const DeviceParts& parts,
                 const DeviceOptions& options)
    : state_(std::make_shared<State>()) {
  state_->program = std::move(program);
  state_->places = device_places(*state_->program);
  state_->own = options.own;
  state_->one_each = !options.own.empty();
  state_->enter_thread = parts.enter_thread;
  for (int i = 0; !state_->one_each && i < static_cast<int>(state_->places.size()); ++i)
    state_->own.push_back(i);
  if (options.emulation) state_->emulate(cluster, *options.emulation);
  for (int i = 0; i < size(); ++i) state_->executors.push_back(parts.make_executor(i));
  Executor& first = *state_->executors.at(0);
  state_->transport = parts.make_transport ? parts.make_transport(first, state_->steady_clock)
                                           : std::make_shared<InProcessTransport>(
                                                 first, state_->steady_clock, options.timeout);
  if (state_->emulated) state_->transport = state_->emulated->around(std::move(state_->transport));
  std::vector<std::string> names;
  for (int i = 0; i < size(); ++i) {
    state_->add(cluster, i, options);
    names.push_back(interpreter(i).device_name());
  }
  threads_ = std::make_unique<DeviceThreads>(
      names, [state = state_](const std::string& cause) { state->abort(cause); }, options.patience);
}

Devices::~Devices() = default;

const Program& Devices::program() const { return *state_->program; }

int Devices::size() const { return static_cast<int>(state_->own.size()); }

int Devices::number(int i) const { return state_->own[at(i)]; }

DevicePlace Devices::place(int i) const { return state_->places[at(number(i))]; }

Interpreter& Devices::interpreter(int i) { return *state_->interpreters[at(i)]; }

bool Devices::are_of_one_process_each() const { return state_->one_each; }

void Devices::use(const std::shared_ptr<const Program>& program) {
  for (int i = 0; i < size(); ++i) interpreter(i).use(program);
}

std::vector<StepReport> Devices::run_step(const std::function<void()>& poll) {
  const auto reports = std::make_shared<std::vector<StepReport>>(at(size()));
  std::future<void> done = std::async(std::launch::async, [&] {
    threads_->run([state = state_, reports](int i) { (*reports)[at(i)] = state->run_step(i); });
  });
  while (done.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
    if (poll) poll();
  done.get();
  ++state_->steps;
  return std::move(*reports);
}

int64_t Devices::steps() const { return state_->steps; }

std::vector<int64_t> Devices::peak_bytes() const {
  return state_->emulated ? state_->emulated->peak_bytes() : std::vector<int64_t>{};
}

void Devices::abort(const std::string& cause) { state_->abort(cause); }

}  // namespace medley
