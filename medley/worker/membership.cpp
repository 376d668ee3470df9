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
  handshake(*store_, options.generation, device, devices, hashes, options.timeout);
  WatchdogOptions settings;
  settings.generation = options.generation;
  settings.device = device;
  settings.devices = devices;
  settings.names = names;
  settings.link = options.link;
  settings.heartbeat_timeout = options.heartbeat_timeout;
  settings.poll = options.poll;
  watchdog_ = std::make_unique<Watchdog>(*store_, settings, std::move(abort), options.exit);
}

Membership::~Membership() { finish(); }

Error Membership::fail(const std::string& call, const std::string& edge, const Error& error) {
  if (over_) return error;
  over_ = true;
  const Failure first = watchdog_->fail(call, edge, error.what(), error.blame());
  return {first.blame, watchdog_->describe(first)};
}

void Membership::begin(const std::string& joint_call) { watchdog_->begin(joint_call); }

void Membership::end() { watchdog_->end(); }

void Membership::finish() {
  if (over_) return;
  over_ = true;
  watchdog_->finish();
}

}  // namespace medley
