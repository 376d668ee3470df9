#pragma once

// Gives a transport emulated times: the bytes travel once through the inner transport, while the
// ledger books the rounds of the cheapest algorithm on the emulated links. Decorates any transport,
// for the devices of this process.

#include <functional>
#include <map>
#include <mutex>

#include "medley/emulation/ledger.h"
#include "medley/network/collectives.h"
#include "medley/runtime/transport.h"

namespace medley {

// Called wherever the host may be slow. Tests sleep in it for random times.
using HostDelay = std::function<void()>;

class EmulatedTransport final : public Transport {
 public:
  // Requires: both outlive this and its pendings; the devices that post have joined the ledger.
  EmulatedTransport(Transport& inner, Ledger& ledger, HostDelay delay = {});
  ~EmulatedTransport() override;

  std::unique_ptr<Pending> post(Exchange exchange) override;
  void abort(const std::string& cause) override;

 private:
  class EmulatedPending;
  using Plan = std::vector<std::vector<RoundStep>>;  // [member]

  const Plan& plan(const Exchange& exchange);

  Transport& inner_;
  Ledger& ledger_;
  HostDelay delay_;
  std::mutex mutex_;
  std::map<std::tuple<CommunicationKind, std::vector<int>, std::vector<int64_t>>, Plan> plans_;
  std::map<std::tuple<std::vector<int>, int, int>, int64_t>
      next_;  // [group, lane, member] -> number of its next exchange
};

// Returns the messages of member `me` of an all-to-all, all in one round (network/collectives.h),
// or of a transfer: a device knows only its own lengths.
std::vector<RoundStep> messages_at_once(const Exchange& exchange);

}  // namespace medley
