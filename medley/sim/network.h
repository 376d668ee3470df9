#pragma once

// Determines when devices continue: exchanges are simulated message by message or, for groups with
// too many messages, as a whole. In both models each communication stream processes its exchanges
// in post order.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "medley/network/flow_engine.h"
#include "medley/sim/prices.h"

namespace medley {

// A post of one member, or of several in lockstep. The exact network supports single ones only.
struct NetworkPost {
  int device = 0;   // in the cluster
  int member = 0;   // in the group
  int members = 1;  // members in lockstep, itself included
  ExchangeKey key;
  Nanoseconds at;
  const Exchanges* exchanges = nullptr;
  Turn turn;
};

class SimulatedNetwork {
 public:
  virtual ~SimulatedNetwork() = default;
  virtual int post(const NetworkPost& post) = 0;
  // Returns nullopt for an incomplete exchange.
  virtual std::optional<FlowEngine::Times> completion(int exchange) = 0;
  virtual void release(int exchange) = 0;
  // Appends exchanges completed since the last call. Returns false if the network does not track
  // this and callers must poll.
  virtual bool take_completed(std::vector<int>& exchanges) = 0;
  // Advances until an exchange may be complete, at most to `until`. Returns false if nothing
  // happened.
  virtual bool advance(Nanoseconds until) = 0;
  // Returns the next event by the posts so far; nullopt without one.
  virtual std::optional<Nanoseconds> next_event() const = 0;
  // Returns whether an exchange of the device is running, at the network's current time.
  virtual bool communicates(int device) const = 0;
};

// Returns the emulator's model, message by message (network/flow_engine.h).
std::unique_ptr<SimulatedNetwork> exact_network(const Topology& topology, const EngineRoom& room);

// A collective begins when its last member has posted and reached it, and takes the estimate of its
// algorithm (network/estimate.h) for all members:
//
//   device 0   post .........|====== estimate ======|
//   device 1            post |====== estimate ======|
//
// A transfer begins when its last sender has reached it and no transfer occupies its links. It
// occupies each link for its bytes, so transfers are served in the order in which they are ready:
//
//   link       |== transfer a ==|== transfer b ==|
//   receiver    .................| latency       | latency |
//
// The model ignores members that begin while others are late, and links shared by groups or by
// groups and transfers. It queues transfers instead of sharing links; in one direction that changes
// their order, not the end of all. It also ignores that a link is idle while a transfer waits for
// another one.
//
// Transfers that become ready at the same instant are served in key order. `asked_who`: whether
// communicates() is called.
std::unique_ptr<SimulatedNetwork> estimated_network(const Topology& topology,
                                                    int num_streams,
                                                    bool asked_who);

}  // namespace medley
