#pragma once

// Who may go on when: the exchanges of all devices, followed message by message, or, for groups so
// big that messages are too many, as wholes. Both keep the same promise: each of a device's
// communication streams takes its exchanges in the order of their posts.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "medley/network/flow_engine.h"
#include "medley/sim/prices.h"

namespace medley {

// One member's post of a communication, or that of several who do the same: the exact network has
// only single ones.
struct NetworkPost {
  int device = 0;   // of the cluster
  int member = 0;   // of the group
  int members = 1;  // that this stands for
  ExchangeKey key;
  Nanoseconds at;
  const Exchanges* exchanges = nullptr;
  Turn turn;
};

class SimulatedNetwork {
 public:
  virtual ~SimulatedNetwork() = default;
  virtual int post(const NetworkPost& post) = 0;
  // Nothing: not yet.
  virtual std::optional<FlowEngine::Times> completion(int exchange) = 0;
  virtual void release(int exchange) = 0;
  // Adds those whose completion came to be known since this was last asked. Returns false if that
  // is not noted: whoever waits has to ask.
  virtual bool take_completed(std::vector<int>& exchanges) = 0;
  // Goes on until somebody may have completed, at most to `until`. Returns false if nothing has
  // happened.
  virtual bool advance(Nanoseconds until) = 0;
  // Nothing: as far as posts are known, nothing will happen any more.
  virtual std::optional<Nanoseconds> next_event() const = 0;
  // Whether an exchange of the device is under way, as far as the network has gone on.
  virtual bool communicates(int device) const = 0;
};

// The emulator's rules, message by message (network/flow_engine.h).
std::unique_ptr<SimulatedNetwork> exact_network(const Topology& topology, const EngineRoom& room);

// A collective begins when its last member has posted and come to it, and takes the estimate of its
// algorithm (network/estimate.h) for all members:
//
//   device 0   post .........|====== estimate ======|
//   device 1            post |====== estimate ======|
//
// A transfer begins when its last sender has come to it and the links on its way are free of
// transfers; it occupies each for its bytes, so that transfers follow each other in the order in
// which they are ready:
//
//   link       |== transfer a ==|== transfer b ==|
//   receiver    .................| latency       | latency |
//
// What it misses: members that begin while others are late; groups that share links with others or
// with transfers; that transfers share links instead of waiting, which for those of one direction
// changes who is first, not when all are there; and that a link is idle where a transfer waits for
// another one.
//
// Transfers that become ready at the same instant follow each other in the order of their keys.
// `asked_who`: whether communicates() is asked.
std::unique_ptr<SimulatedNetwork> estimated_network(const Topology& topology,
                                                    int num_streams,
                                                    bool asked_who);

}  // namespace medley
