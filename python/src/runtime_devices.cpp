#include "runtime_devices.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "medley/cost/cost_model.h"
#include "medley/emulation/emulated_clock.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/network/topology.h"
#include "medley/profile/profile.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/torch/aten_executor.h"
#include "medley/torch/c10d_transport.h"

namespace medley {
namespace {

// Sleeps for a random time now and then, as a busy host makes one.
HostDelay random_delay(int64_t seed) {
  if (seed == 0) return {};
  auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  return [seed, calls] {
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 1000003 + (*calls)++);
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
  };
}

}  // namespace

// What emulation puts around the real things, kept in the order in which it may go away.
class Devices::EmulatedCluster {
 public:
  EmulatedCluster(const Cluster& cluster, const Emulation& emulation)
      : topology_(cluster), options_(emulation), delay_(random_delay(emulation.delay_seed)) {
    if (!emulation.profile.empty())
      measured_.emplace(cluster, parse_profile(emulation.profile, "<profile>"));
    LedgerOptions settings;
    settings.pace = emulation.pace;
    ledger_ = emulation.ledger.empty() ? Ledger::create(topology_, settings)
                                       : Ledger::open(topology_, emulation.ledger, settings);
  }
  ~EmulatedCluster() {
    for (int device : joined_) ledger_->leave(device);
  }

  void join(int device) {
    ledger_->join(device);
    joined_.push_back(device);
  }
  // Of a device that the plan does not use: it will never post.
  void leave_out(int device) {
    ledger_->join(device);
    ledger_->leave(device);
  }
  std::unique_ptr<Transport> around(std::unique_ptr<Transport> inner) {
    inner_transport_ = std::move(inner);
    return std::make_unique<EmulatedTransport>(*inner_transport_, *ledger_, delay_);
  }
  std::unique_ptr<Executor> around(std::unique_ptr<Executor> inner, int device) {
    inner_executors_.push_back(std::move(inner));
    const HiddenTruth truth{options_.truth_seed, options_.truth_spread};
    auto outer = std::make_unique<EmulatedExecutor>(
        *inner_executors_.back(),
        *ledger_,
        device,
        EmulatedExecutorOptions{truth, delay_, measured_ ? &*measured_ : nullptr});
    memory_.push_back(&outer->memory());
    return outer;
  }
  std::vector<int64_t> peak_bytes() const {
    std::vector<int64_t> peaks;
    for (const MemoryMeter* each : memory_) peaks.push_back(each->peak());
    return peaks;
  }
  std::unique_ptr<Clock> clock(int device) {
    return std::make_unique<EmulatedClock>(*ledger_, device);
  }
  // Between steps a device of one process stands still until those of others come to it in real
  // time, which the ledger cannot know: so in emulated time, too, all devices end a step together.
  void end_step(int device, int64_t step, int num_devices, StepReport& report) {
    const Nanoseconds before = ledger_->now(device);
    const int exchange = ledger_->post(device, {kStepEnds, step}, num_devices, {}, "end of step");
    ledger_->begin_wait(device, exchange);
    ledger_->finish_wait(device, exchange);
    report.end = ledger_->now(device);
    report.waiting += report.end - before;
  }
  void abort(const std::string& cause) { ledger_->abort(cause); }

 private:
  static constexpr uint64_t kStepEnds = 1;  // the number of no group

  Topology topology_;
  std::optional<CostModel> measured_;
  Emulation options_;
  HostDelay delay_;
  std::unique_ptr<Ledger> ledger_;
  std::vector<int> joined_;
  std::unique_ptr<Transport> inner_transport_;
  std::vector<std::unique_ptr<Executor>> inner_executors_;
  std::vector<const MemoryMeter*> memory_;  // of the outer ones
};

std::vector<DevicePlace> device_places(const Program& program) {
  std::vector<DevicePlace> places;
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (size_t i = 0; i < program.stages[s].devices.size(); ++i)
      places.push_back({static_cast<int>(s), static_cast<int>(i)});
  return places;
}

Devices::Devices(const Program& program, const Cluster& cluster, const DeviceOptions& options)
    : places_(device_places(program)),
      own_(options.own),
      one_each_(!options.own.empty()),
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
  for (size_t i = 0; i < own_.size(); ++i) {
    const std::vector<std::string>& names = options.torch_devices;
    torch_devices_.emplace_back(names.empty() ? "cpu" : names[i % names.size()]);
    executors_.push_back(make_aten_executor(torch_devices_.back()));
  }
  if (one_each_)
    transport_ = make_c10d_transport(
        options.groups, options.timeout, torch_devices_.at(0), options.interface);
  else
    transport_ =
        std::make_unique<InProcessTransport>(*executors_.at(0), *steady_clock_, options.timeout);
  if (emulated_) transport_ = emulated_->around(std::move(transport_));
  for (int i = 0; i < size(); ++i) add(program, cluster, i, options);
  std::vector<std::string> names;
  for (const auto& interpreter : interpreters_) names.push_back(interpreter->device_name());
  threads_ =
      std::make_unique<DeviceThreads>(names, [this](const std::string& cause) { abort(cause); });
}

Devices::~Devices() = default;

void Devices::add(const Program& program,
                  const Cluster& cluster,
                  int i,
                  const DeviceOptions& options) {
  const auto [stage, index] = place(i);
  const int device = program.stages[static_cast<size_t>(stage)].devices[static_cast<size_t>(index)];
  std::unique_ptr<Executor>& executor = executors_[static_cast<size_t>(i)];
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
  // The devices of a process share its processors.
  const int threads_each = std::max(1, at::get_num_threads() / size());
  reports_.assign(static_cast<size_t>(size()), {});
  std::future<void> done = std::async(std::launch::async, [&] {
    threads_->run([this, threads_each](int i) {
      if (at::get_num_threads() != threads_each) at::set_num_threads(threads_each);
      StepReport& report = reports_[static_cast<size_t>(i)];
      report = interpreter(i).run_step();
      if (emulated_)
        emulated_->end_step(
            numbers_[static_cast<size_t>(i)], steps_, static_cast<int>(places_.size()), report);
    });
  });
  while (done.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) poll();
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
