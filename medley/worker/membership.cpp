#include "medley/worker/membership.h"

namespace medley {

Membership::Membership(std::unique_ptr<Store> store,
                       const MembershipOptions& options,
                       int device,
                       const std::vector<int>& devices,
                       const std::vector<std::string>& names,
                       const NamedHashes& hashes,
                       std::function<void(const std::string&)> abort)
    : store_(std::move(store)) {
  handshake(*store_, options.epoch, device, devices, hashes, options.timeout);
  WatchdogOptions settings;
  settings.epoch = options.epoch;
  settings.device = device;
  settings.devices = devices;
  settings.names = names;
  settings.link = options.link;
  watchdog_ = std::make_unique<Watchdog>(*store_, settings, std::move(abort), options.exit);
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
