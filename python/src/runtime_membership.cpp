#include "runtime_membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/torch/c10d_store.h"

namespace medley {

Membership::Membership(const MembershipOptions& options,
                       int device,
                       const std::vector<int>& devices,
                       const std::vector<std::string>& names,
                       const NamedHashes& hashes,
                       std::function<void(const std::string&)> abort)
    : devices_(devices),
      names_(names),
      store_(make_c10d_store(options.host, options.port, false, options.prefix, options.timeout)) {
  handshake(*store_, options.epoch, device, devices, hashes, options.timeout);
  WatchdogOptions settings;
  settings.epoch = options.epoch;
  settings.device = device;
  settings.devices = devices;
  watchdog_ = std::make_unique<Watchdog>(*store_, settings, std::move(abort), print_and_exit);
}

Membership::~Membership() { finish(); }

std::string Membership::fail(const std::string& call,
                             const std::string& edge,
                             const std::string& cause) {
  if (over_) return cause;
  over_ = true;
  return describe(watchdog_->fail(call, edge, cause));
}

void Membership::finish() {
  if (over_) return;
  over_ = true;
  watchdog_->finish();
}

std::string Membership::describe(const Failure& failure) const {
  const auto place = std::find(devices_.begin(), devices_.end(), failure.device);
  if (place == devices_.end()) return to_string(failure);
  const std::string& name = names_[static_cast<size_t>(place - devices_.begin())];
  // Causes mostly begin with the name already, and say call and exchange.
  if (failure.cause.starts_with(name)) return failure.cause;
  std::string text = name;
  for (const std::string& part : {failure.call, failure.edge})
    if (!part.empty()) text += ": " + part;
  return text + ": " + failure.cause;
}

}  // namespace medley
