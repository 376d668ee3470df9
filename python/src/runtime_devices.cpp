#include "runtime_devices.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/torch/aten_executor.h"

namespace medley {

Devices::Devices(const Program& program, const Cluster& cluster, const DeviceOptions& options)
    : own_(options.own), one_each_(!options.own.empty()) {
  const LoweredStage& stage = program.stages.at(0);
  const int count = static_cast<int>(stage.devices.size());
  for (int i = 0; options.own.empty() && i < count; ++i) own_.push_back(i);
  for (size_t i = 0; i < own_.size(); ++i) {
    const std::vector<std::string>& names = options.torch_devices;
    torch_devices_.emplace_back(names.empty() ? "cpu" : names[i % names.size()]);
    executors_.push_back(make_aten_executor(torch_devices_.back()));
  }
  transports_.push_back(
      std::make_unique<InProcessTransport>(*executors_.at(0), clock_, options.timeout));
  for (size_t i = 0; i < own_.size(); ++i) {
    const int device = stage.devices.at(static_cast<size_t>(own_[i]));
    InterpreterOptions settings;
    settings.device_name = cluster.devices.at(static_cast<size_t>(device)).name;
    settings.trace = options.trace;
    settings.keep_gradients = options.keep_gradients;
    interpreters_.push_back(std::make_unique<Interpreter>(program,
                                                          0,
                                                          own_[i],
                                                          *executors_[i],
                                                          *transports_[i % transports_.size()],
                                                          clock_,
                                                          settings));
  }
}

Devices::~Devices() = default;

void Devices::abort(const std::string& cause) {
  for (const std::unique_ptr<Transport>& transport : transports_) transport->abort(cause);
}

}  // namespace medley
