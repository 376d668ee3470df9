#include "medley/measure/emulated_device.h"

#include "medley/emulation/emulated_clock.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/network/topology.h"
#include "medley/runtime/null_executor.h"

namespace medley {
namespace {

Cluster cluster_of_one(const DeviceKind& kind) {
  Cluster cluster;
  cluster.pools.push_back({"only", 1, 1, kind, false, 0});
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

EmulatedExecutorOptions options_of(const HiddenTruth& truth) {
  EmulatedExecutorOptions options;
  options.truth = truth;
  return options;
}

}  // namespace

// A cluster of one device and its ledger.
struct EmulatedDevice::Alone {
  explicit Alone(const DeviceKind& kind)
      : topology(cluster_of_one(kind)), ledger(Ledger::create(topology)) {
    ledger->join(0);
  }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  ~Alone() { ledger->leave(0); }
  Topology topology;
  std::unique_ptr<Ledger> ledger;
};

struct EmulatedDevice::State {
  State(Ledger& ledger, int device, const HiddenTruth& truth)
      : executor(null, ledger, device, options_of(truth)), clock(ledger, device) {}

  NullExecutor null;
  EmulatedExecutor executor;
  EmulatedClock clock;
};

EmulatedDevice::EmulatedDevice(const DeviceKind& kind, const HiddenTruth& truth)
    : alone_(std::make_unique<Alone>(kind)),
      state_(std::make_unique<State>(*alone_->ledger, 0, truth)) {}
EmulatedDevice::EmulatedDevice(Ledger& ledger, int device, const HiddenTruth& truth)
    : device_(device), state_(std::make_unique<State>(ledger, device, truth)) {}
EmulatedDevice::~EmulatedDevice() = default;

OpTimer EmulatedDevice::timer() {
  OpTimer timer{.executor = state_->executor,
                .clock = state_->clock,
                .device = device_,
                .make_operand = [](const TensorType& type, int64_t) {
                  std::vector<int64_t> shape;
                  for (const Size& size : type.shape) shape.push_back(size.coefficient);
                  return null_buffer(type.dtype, std::move(shape));
                }};
  // The virtual clock repeats times exactly.
  timer.warm_ups = 0;
  timer.least = timer.most = 1;
  return timer;
}

}  // namespace medley
