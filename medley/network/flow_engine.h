#pragma once

// Devices that exchange messages over shared links, as events in integer nanoseconds. Used by the
// emulator (with the state in memory that processes share) and the simulator. Knows nothing of
// threads, of compute, or of whose turn it is: the caller says up to which time nobody can post any
// more.
//
// Every device has communication streams. Each takes its exchanges in the order of their posts, not
// before they are posted; streams do not wait for each other, but share links and connections. An
// exchange is rounds of messages: a device enters a round when it has sent and received all of the
// round before.
//
//   device 0:  post ~~~ | round 0: send to 1, receive from 2 | round 1 ... | end
//   message:   waits behind earlier ones of its connection (FIFO), of whatever stream; of what a
//              device sends in the same instant, what it posted first is first; then its bytes flow
//              at the max-min fair rate, one message per connection; it arrives one latency after
//              its last byte left
//
// Who only receives may have posted long before anything comes: where that is usual (Turn::ahead),
// its part starts with its first message, not with its turn.
//
// An exchange is complete for a device when its own part has ended and every member has posted.
// What happens is a pure function of the posts: the order in which they come in makes no
// difference.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "medley/base/units.h"
#include "medley/network/bundles.h"
#include "medley/network/shared_pool.h"
#include "medley/network/topology.h"

namespace medley {

// One message of one round, as the sender or the receiver sees it.
struct RoundStep {
  int round = 0;
  int peer = 0;  // a device
  int64_t bytes = 0;
  bool send = false;
};

// Names one exchange of one group of devices: the same number on all members.
struct ExchangeKey {
  uint64_t group = 0;
  int64_t number = 0;
  bool operator==(const ExchangeKey&) const = default;
};

// Where a device takes part in an exchange: the same on all members.
struct Turn {
  int stream = 0;
  bool ahead = false;  // the part of who only receives starts when the first message is sent to it
  bool operator==(const Turn&) const = default;
};

// How much a state has room for. One exchange is one post of one device, from the post to its
// release.
struct EngineRoom {
  int32_t devices = 0, links = 0, networks = 0;  // of the topology
  int32_t streams = 0;                           // of each device
  int32_t exchanges = 0;
  int32_t steps = 0;
  int32_t messages = 0;
};
// `messages`: of exchanges that are posted ahead, each counts twice.
EngineRoom engine_room(const Topology& topology,
                       int64_t exchanges,
                       int64_t steps,
                       int64_t messages,
                       int64_t streams = 1);
EngineRoom usual_room(const Topology& topology);

class FlowEngine {
 public:
  // `memory` holds the state; its bytes may be seen by other processes at other addresses.
  // Requires: aligned to 16 bytes and of the size that bytes_needed() says; all zeros, then
  // formatted once, by anybody; one caller at a time. `topology` outlives this.
  static size_t bytes_needed(const EngineRoom& room);
  static void format(std::span<std::byte> memory, const EngineRoom& room);
  FlowEngine(std::span<std::byte> memory, const Topology& topology);
  ~FlowEngine();

  // Returns the exchange. `steps` in order of rounds. Throws Error(kUs) if there is no more room.
  // Requires: `at` is not before a time that advance() was told; a device posts in order of time.
  int post(int device,
           ExchangeKey key,
           int num_members,
           Nanoseconds at,
           std::span<const RoundStep> steps,
           Turn turn = {});

  // Commits events up to `safe`: nobody will post at a time before it. Stops after the first
  // instant in which an exchange has ended, since whoever waits for it may post from then on, and
  // returns true; else false.
  bool advance(Nanoseconds safe);
  // Returns the time of the next event, as far as posts are known.
  std::optional<Nanoseconds> next_event() const;

  struct Times {
    Nanoseconds start, end;  // of the device's own part
    Nanoseconds complete;
  };
  std::optional<Times> completion(int exchange) const;  // nothing: not yet
  int device_of(int exchange) const;
  // Requires: nobody will ask for it any more. One that is under way goes on.
  void release(int exchange);
  // The device sends and receives nothing from now on; what flows to or from it is dropped.
  void remove(int device);

  Nanoseconds now() const;
  // Whether an exchange of the device has started and not ended.
  bool communicates(int device) const;

 private:
  struct Header;
  struct Device;
  struct Stream;
  struct Exchange;
  struct Instance;
  struct Step;
  struct Message;
  struct Queue;
  struct StartsLater;
  struct Memory;

  int32_t& bucket(ExchangeKey key);
  int32_t find_instance(ExchangeKey key, int num_members, Turn turn);
  void await_start(int32_t stream);
  void process();
  void finish_due();
  void arrive_due();
  void arrive(int32_t message);
  void start_due();
  void start_part(Exchange& exchange);
  void enter_rounds(int32_t stream);
  void enter_round(int32_t stream, Exchange& exchange);
  void end_exchange(int32_t stream);
  void free_exchange(int32_t exchange);
  void send(int32_t stream, const Step& step);
  void line_up();
  void leave(int32_t message);
  bool begin(int32_t message);
  void fly(int32_t message);
  // The exchange that the message goes to, if it is in its round.
  Exchange* receiver(const Message& message) const;
  Message* find_early(const Message& message) const;
  void announce(const Message& message);
  void take_early(int32_t message);
  void receive_early(int32_t stream, Exchange& exchange);

  const Topology& topology_;
  std::unique_ptr<Memory> memory_;
  Bundles bundles_;
  // Of one instant, kept for their memory.
  std::vector<int32_t> finished_, sent_;  // messages
  std::vector<int32_t> entering_;         // streams that may enter a round
};

}  // namespace medley
