#include "medley/worker/emulated_cluster.h"

#include <atomic>
#include <random>
#include <thread>

#include "medley/emulation/emulated_clock.h"
#include "medley/profile/profile.h"

namespace medley {
namespace {

constexpr uint64_t kStepEnds = 1;  // the number of no group

// Sleeps for a random time now and then, like a busy host.
HostDelay random_delay(int64_t seed) {
  if (seed == 0) return {};
  auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  return [seed, calls] {
    std::mt19937_64 random(static_cast<uint64_t>(seed) * 1000003 + (*calls)++);
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
  };
}

}  // namespace

EmulatedCluster::EmulatedCluster(const Cluster& cluster, const Emulation& emulation)
    : topology_(cluster), options_(emulation), delay_(random_delay(emulation.delay_seed)) {
  if (!emulation.profile.empty())
    measured_.emplace(cluster, parse_profile(emulation.profile, "<profile>"));
  LedgerOptions settings;
  settings.pace = emulation.pace;
  ledger_ = emulation.ledger.empty() ? Ledger::create(topology_, settings)
                                     : Ledger::open(topology_, emulation.ledger, settings);
}

EmulatedCluster::~EmulatedCluster() {
  for (int device : joined_) ledger_->leave(device);
}

void EmulatedCluster::join(int device) {
  ledger_->join(device);
  joined_.push_back(device);
}

void EmulatedCluster::leave_out(int device) {
  ledger_->join(device);
  ledger_->leave(device);
}

std::shared_ptr<Transport> EmulatedCluster::around(std::shared_ptr<Transport> inner) {
  inner_transport_ = std::move(inner);
  return std::make_shared<EmulatedTransport>(*inner_transport_, *ledger_, delay_);
}

std::shared_ptr<Executor> EmulatedCluster::around(std::shared_ptr<Executor> inner, int device) {
  inner_executors_.push_back(std::move(inner));
  const HiddenTruth truth{options_.truth_seed, options_.truth_spread};
  auto outer = std::make_shared<EmulatedExecutor>(
      *inner_executors_.back(),
      *ledger_,
      device,
      EmulatedExecutorOptions{truth, delay_, measured_ ? &*measured_ : nullptr});
  memory_.push_back(&outer->memory());
  return outer;
}

std::vector<int64_t> EmulatedCluster::peak_bytes() const {
  std::vector<int64_t> peaks;
  for (const MemoryMeter* each : memory_) peaks.push_back(each->peak());
  return peaks;
}

std::unique_ptr<Clock> EmulatedCluster::clock(int device) {
  return std::make_unique<EmulatedClock>(*ledger_, device);
}

void EmulatedCluster::end_step(int device, int64_t step, int num_devices, StepReport& report) {
  const Nanoseconds before = ledger_->now(device);
  const int exchange = ledger_->post(device, {kStepEnds, step}, num_devices, {}, "end of step");
  ledger_->begin_wait(device, exchange);
  ledger_->finish_wait(device, exchange);
  report.end = ledger_->now(device);
  report.waiting += report.end - before;
}

void EmulatedCluster::abort(const std::string& cause) { ledger_->abort(cause); }

}  // namespace medley
