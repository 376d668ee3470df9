#pragma once

// A transport with late devices: it sleeps for a random time before posts and waits.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "medley/runtime/transport.h"

namespace medley {

class LateTransport final : public Transport {
 public:
  // Sleeps in one of `one_of` calls, for less than `microseconds`, with separate random numbers per
  // device.
  LateTransport(std::shared_ptr<Transport> next, uint32_t seed, unsigned one_of, int microseconds)
      : next_(std::move(next)), seed_(seed), one_of_(one_of), microseconds_(microseconds) {}
  std::unique_ptr<Pending> post(Exchange exchange) override;
  void abort(const std::string& cause) override { next_->abort(cause); }

 private:
  struct Late;
  void sleep(int device);

  std::shared_ptr<Transport> next_;
  uint32_t seed_;
  unsigned one_of_;
  int microseconds_;
  std::mutex mutex_;
  std::map<int, std::minstd_rand> random_;  // by device
};

}  // namespace medley
