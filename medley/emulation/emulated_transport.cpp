#include "medley/emulation/emulated_transport.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/calls.h"

namespace medley {
namespace {

uint64_t group_number(const std::vector<int>& group, int lane) {
  uint64_t number = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](int part) {
    for (int shift = 0; shift < 32; shift += 8)
      number = (number ^ (static_cast<uint64_t>(part) >> shift & 0xff)) * 0x100000001b3;
  };
  for (int device : group) add(device);
  add(lane);
  return number;
}

Collective collective_of(const Exchange& exchange) {
  const int64_t granule = std::max<int64_t>(exchange.bytes_per_element, 1);
  Collective collective{
      exchange.kind, exchange.group, {exchange.bytes / granule * granule}, granule};
  const CommunicationTraits& traits = traits_of(collective.kind);
  if (traits.is_whole()) return collective;
  if (exchange.sync) {
    const SyncTraffic traffic = traffic_of(*exchange.sync);
    collective.lengths = traffic.first;
    collective.lengths.insert(
        collective.lengths.end(), traffic.second.begin(), traffic.second.end());
    for (int64_t& length : collective.lengths) length *= granule;
    return collective;
  }
  collective.lengths = traits.sends ? exchange.send : exchange.receive;
  for (int64_t& length : collective.lengths) length *= granule;
  return collective;
}

}  // namespace

std::vector<RoundStep> messages_at_once(const Exchange& exchange) {
  std::vector<RoundStep> steps;
  for (size_t other = 0; other < exchange.group.size(); ++other) {
    if (other == at(exchange.me)) continue;
    const int64_t out = exchange.send[other] * exchange.bytes_per_element,
                  in = exchange.receive[other] * exchange.bytes_per_element;
    if (out > 0) steps.push_back({0, exchange.group[other], out, true});
    if (in > 0) steps.push_back({0, exchange.group[other], in, false});
  }
  return steps;
}

// The ledger's wait begins before the inner one and ends after it, so that a device blocked there
// does not block others.
class EmulatedTransport::EmulatedPending final : public Pending {
 public:
  EmulatedPending(EmulatedTransport& transport,
                  std::unique_ptr<Pending> inner,
                  int device,
                  int exchange)
      : transport_(transport), inner_(std::move(inner)), device_(device), exchange_(exchange) {}
  EmulatedPending(const EmulatedPending&) = delete;
  EmulatedPending& operator=(const EmulatedPending&) = delete;
  ~EmulatedPending() override {
    if (exchange_ < 0) return;
    try {
      transport_.ledger_.release(exchange_);
    } catch (const Error&) {  // the ledger is broken; the next waiter throws
    }
  }

  std::vector<Buffer> wait() override {
    Ledger& ledger = transport_.ledger_;
    if (transport_.delay_) transport_.delay_();
    ledger.begin_wait(device_, exchange_);
    std::vector<Buffer> outputs;
    try {
      outputs = inner_->wait();
      if (transport_.delay_) transport_.delay_();
      const FlowEngine::Times times = ledger.finish_wait(device_, exchange_);
      exchange_ = -1;
      times_ = {times.start, times.end};
    } catch (...) {
      ledger.leave(device_);  // this device has ended
      throw;
    }
    ledger.keep_pace(device_);
    return outputs;
  }

  std::optional<std::pair<Nanoseconds, Nanoseconds>> times() override { return times_; }

 private:
  EmulatedTransport& transport_;
  std::unique_ptr<Pending> inner_;
  int device_, exchange_;
  std::optional<std::pair<Nanoseconds, Nanoseconds>> times_;
};

EmulatedTransport::EmulatedTransport(Transport& inner, Ledger& ledger, HostDelay delay)
    : inner_(inner), ledger_(ledger), delay_(std::move(delay)) {}
EmulatedTransport::~EmulatedTransport() = default;

// All members of a group derive the same plan from common data.
const EmulatedTransport::Plan& EmulatedTransport::plan(const Exchange& exchange) {
  const Collective collective = collective_of(exchange);
  const std::scoped_lock lock(mutex_);
  auto [place, is_new] = plans_.try_emplace({exchange.kind, exchange.group, collective.lengths});
  if (!is_new) return place->second;
  place->second =
      steps_of_members(cheapest(collective, ledger_.topology()).messages, exchange.group);
  return place->second;
}

std::unique_ptr<Pending> EmulatedTransport::post(Exchange exchange) {
  if (delay_) delay_();
  const int device = exchange.group[at(exchange.me)];
  ExchangeKey key{group_number(exchange.group, exchange.lane), 0};
  {
    const std::scoped_lock lock(mutex_);
    key.number = next_[{exchange.group, exchange.lane, exchange.me}]++;
  }
  const bool knows_own_lengths_only = traits_of(exchange.kind).is_pairwise() && !exchange.sync;
  const int booked = ledger_.post(
      device,
      key,
      static_cast<int>(exchange.group.size()),
      knows_own_lengths_only ? messages_at_once(exchange) : plan(exchange)[at(exchange.me)],
      exchange.name,
      {exchange.stream, exchange.kind == CommunicationKind::kTransfer});
  try {
    return std::make_unique<EmulatedPending>(
        *this, inner_.post(std::move(exchange)), device, booked);
  } catch (...) {
    ledger_.release(booked);
    throw;
  }
}

void EmulatedTransport::abort(const std::string& cause) {
  ledger_.abort(cause);
  inner_.abort(cause);
}

}  // namespace medley
