#include "runtime_membership.h"

#include <fmt/format.h>

#include "medley/torch/c10d_store.h"

namespace medley {

Membership::Membership(const MembershipOptions& options,
                       int device,
                       const std::vector<int>& devices,
                       const std::vector<std::string>& names,
                       const NamedHashes& hashes,
                       std::function<void(const std::string&)> abort)
    : store_(make_c10d_store(options.host, options.port, false, options.prefix, options.timeout)) {
  handshake(*store_, options.epoch, device, devices, hashes, options.timeout);
  WatchdogOptions settings;
  settings.epoch = options.epoch;
  settings.device = device;
  settings.devices = devices;
  settings.names = names;
  settings.link = fmt::format("link to {}:{}", options.host, options.port);
  if (!options.interface.empty()) settings.link += " through " + options.interface;
  watchdog_ = std::make_unique<Watchdog>(*store_, settings, std::move(abort), print_and_exit);
}

Membership::~Membership() { finish(); }

std::string Membership::fail(const std::string& call,
                             const std::string& edge,
                             const std::string& cause) {
  if (over_) return cause;
  over_ = true;
  return watchdog_->describe(watchdog_->fail(call, edge, cause));
}

void Membership::finish() {
  if (over_) return;
  over_ = true;
  watchdog_->finish();
}

}  // namespace medley
