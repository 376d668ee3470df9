#include "medley/testing/late_transport.h"

#include <thread>

#include "medley/base/at.h"

namespace medley {

struct LateTransport::Late final : Pending {
  Late(LateTransport& a, int b, std::unique_ptr<Pending> c)
      : owner(a), device(b), next(std::move(c)) {}
  std::vector<Buffer> wait() override {
    owner.sleep(device);
    return next->wait();
  }
  LateTransport& owner;
  int device;
  std::unique_ptr<Pending> next;
};

std::unique_ptr<Pending> LateTransport::post(Exchange exchange) {
  const int device = exchange.group.at(at(exchange.me));
  sleep(device);
  return std::make_unique<Late>(*this, device, next_->post(std::move(exchange)));
}

void LateTransport::sleep(int device) {
  int time = 0;
  {
    const std::scoped_lock lock(mutex_);
    auto [random, is_new] = random_.try_emplace(device, seed_ + static_cast<uint32_t>(device));
    if ((random->second)() % one_of_ == 0)
      time = static_cast<int>((random->second)() % static_cast<unsigned>(microseconds_));
  }
  if (time > 0) std::this_thread::sleep_for(std::chrono::microseconds(time));
}

}  // namespace medley
