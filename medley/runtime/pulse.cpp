#include "medley/runtime/pulse.h"

#include "medley/base/error.h"

namespace medley {

Pulse::Pulse(std::unique_ptr<Store> store, const std::string& key, std::chrono::milliseconds period)
    : store_(std::move(store)) {
  thread_ = std::thread([this, key, period] {
    std::unique_lock lock(mutex_);
    for (int64_t count = 0; !stop_; ++count) {
      lock.unlock();
      try {
        store_->set(key, std::to_string(count));
      } catch (const Error&) {
        return;  // the store is gone
      }
      lock.lock();
      changed_.wait_for(lock, period, [this] { return stop_; });
    }
  });
}

Pulse::~Pulse() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace medley
