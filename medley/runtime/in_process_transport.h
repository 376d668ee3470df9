#pragma once

// The transport between the threads of one process. Each device of a group deposits its exchange;
// the last one combines all and wakes the others. The n-th exchanges of all devices of a group
// belong together and must agree, so this transport detects invalid programs. Computes by an
// executor, so knows no tensors.

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
  // `combine` is called by many threads in parallel. Requires: both outlive the transport and its
  // pendings.
  InProcessTransport(Executor& combine, Clock& clock, std::chrono::milliseconds timeout);
  ~InProcessTransport() override;

  // Posts for the device exchange.group[exchange.me]: threads share this one transport.
  std::unique_ptr<Pending> post(Exchange exchange) override;
  // Keeps the first cause.
  void abort(const std::string& cause) override;

 private:
  struct PendingCollective;
  struct State;
  class Participant;
  using Key = std::tuple<std::vector<int>, int, int64_t>;  // group, lane, sequence number

  std::shared_ptr<State> state_;
};

}  // namespace medley
