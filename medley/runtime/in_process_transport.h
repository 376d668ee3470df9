#pragma once

// The transport between the threads of one process. The devices of a group meet: each deposits its
// exchange, the last one combines all of them and wakes the others. The n-th exchange that a device
// posts to a group meets the n-th of every other device, and all have to agree on what it is: this
// is the transport that finds out when a program is wrong. Computes by an executor, so knows no
// tensors.

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "medley/base/clock.h"
#include "medley/runtime/transport.h"

namespace medley {

class InProcessTransport final : public Transport {
 public:
  // `combine` is called by many threads at once. Requires: both outlive the transport and its
  // pendings.
  InProcessTransport(Executor& combine, Clock& clock, std::chrono::milliseconds timeout);
  ~InProcessTransport() override;

  // The device is exchange.group[exchange.me]: threads share this one transport.
  std::unique_ptr<Pending> post(Exchange exchange) override;
  // The first cause stays.
  void abort(const std::string& cause) override;

 private:
  struct PendingCollective;
  struct State;
  class Participant;
  using Key = std::tuple<std::vector<int>, int, int64_t>;  // group, lane, sequence number

  std::shared_ptr<State> state_;
};

}  // namespace medley
