#include "medley/worker/devices.h"

#include <algorithm>
#include <future>

#include "medley/runtime/in_process_transport.h"

namespace medley {

std::vector<DevicePlace> device_places(const Program& program) {
  std::vector<DevicePlace> places;
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (size_t i = 0; i < program.stages[s].devices.size(); ++i)
      places.push_back({static_cast<int>(s), static_cast<int>(i)});
  return places;
}

Devices::Devices(const Program& program,
                 const Cluster& cluster,
                 const DeviceParts& parts,
                 const DeviceOptions& options)
    : places_(device_places(program)),
      own_(options.own),
      one_each_(!options.own.empty()),
      enter_thread_(parts.enter_thread),
      steady_clock_(std::make_shared<SteadyClock>()) {
  std::vector<int> used;
  for (const LoweredStage& stage : program.stages)
    used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  for (int i = 0; !one_each_ && i < static_cast<int>(used.size()); ++i) own_.push_back(i);
  if (options.emulation) {
    emulated_ = std::make_unique<EmulatedCluster>(cluster, *options.emulation);
    // Nothing happens before every device has joined, and nobody else speaks for the unused ones.
    for (int d = 0; own_.at(0) == 0 && d < static_cast<int>(cluster.devices.size()); ++d)
      if (std::find(used.begin(), used.end(), d) == used.end()) emulated_->leave_out(d);
  }
  for (int i = 0; i < size(); ++i) executors_.push_back(parts.make_executor(i));
  Executor& first = *executors_.at(0);
  transport_ = parts.make_transport
                   ? parts.make_transport(first, *steady_clock_)
                   : std::make_shared<InProcessTransport>(first, *steady_clock_, options.timeout);
  if (emulated_) transport_ = emulated_->around(std::move(transport_));
  for (int i = 0; i < size(); ++i) add(program, cluster, i, options);
  std::vector<std::string> names;
  for (const auto& interpreter : interpreters_) names.push_back(interpreter->device_name());
  threads_ = std::make_unique<DeviceThreads>(
      names, [this](const std::string& cause) { abort(cause); }, options.patience);
}

Devices::~Devices() = default;

void Devices::add(const Program& program,
                  const Cluster& cluster,
                  int i,
                  const DeviceOptions& options) {
  const auto [stage, index] = place(i);
  const int device = program.stages[static_cast<size_t>(stage)].devices[static_cast<size_t>(index)];
  std::shared_ptr<Executor>& executor = executors_[static_cast<size_t>(i)];
  numbers_.push_back(device);
  if (emulated_) {
    emulated_->join(device);
    executor = emulated_->around(std::move(executor), device);
    clocks_.push_back(emulated_->clock(device));
  } else {
    clocks_.push_back(std::make_unique<SteadyClock>());
  }
  InterpreterOptions settings;
  settings.device_name = cluster.devices.at(static_cast<size_t>(device)).name;
  settings.trace = options.trace;
  settings.keep_gradients = options.keep_gradients;
  interpreters_.push_back(std::make_unique<Interpreter>(
      program, stage, index, *executor, *transport_, *clocks_.back(), settings));
}

std::vector<StepReport> Devices::run_step(const std::function<void()>& poll) {
  reports_.assign(static_cast<size_t>(size()), {});
  std::future<void> done = std::async(std::launch::async, [&] {
    threads_->run([this](int i) {
      if (enter_thread_) enter_thread_();
      StepReport& report = reports_[static_cast<size_t>(i)];
      report = interpreter(i).run_step();
      if (emulated_)
        emulated_->end_step(
            numbers_[static_cast<size_t>(i)], steps_, static_cast<int>(places_.size()), report);
    });
  });
  while (done.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready)
    if (poll) poll();
  done.get();
  ++steps_;
  return reports_;
}

std::vector<int64_t> Devices::peak_bytes() const {
  return emulated_ ? emulated_->peak_bytes() : std::vector<int64_t>{};
}

void Devices::abort(const std::string& cause) {
  if (emulated_) emulated_->abort(cause);
  transport_->abort(cause);
}

}  // namespace medley
