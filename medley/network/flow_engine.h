#pragma once

// Simulates devices that exchange messages over shared links, as events in integer ns. Used by the
// simulator, and by the emulator with its state in shared memory. Knows nothing of threads, of
// compute, or of turns: the caller gives a time before which no more posts occur.
//
// Each device has communication streams. A stream processes its exchanges in post order, not before
// they are posted. Streams are independent, but share links and connections. An exchange is rounds
// of messages: a device enters a round after it has sent and received all of the round before.
//
//   device 0:  post ~~~ | round 0: send to 1, receive from 2 | round 1 ... | end
//   message:   waits for earlier ones of its connection (FIFO), on any stream; a device's messages
//              of one instant are ordered by post; then its bytes flow at the max-min fair rate,
//              one message per connection; it arrives one latency after its last byte left
//
// A device that only receives may post long before data arrives. With Turn::ahead, its part starts
// with its first message, not with its turn.
//
// An exchange is complete for a device when its own part has ended and every member has posted.
// Events are a pure function of the posts, independent of their order of arrival.

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

// One message of one round, as seen by the sender or the receiver.
struct RoundStep {
  int round = 0;
  int peer = 0;  // a device
  int64_t bytes = 0;
  bool send = false;
};

// Identifies one exchange of one group of devices: equal on all members.
struct ExchangeKey {
  uint64_t group = 0;
  int64_t number = 0;
  bool operator==(const ExchangeKey&) const = default;
};

// Position of an exchange on a device: equal on all members.
struct Turn {
  int stream = 0;
  bool ahead = false;  // receive-only parts start with the first message to them
  bool operator==(const Turn&) const = default;
};

// Capacity of a state. One exchange is one post of one device, from post to release.
struct EngineRoom {
  int32_t devices = 0, links = 0, networks = 0;  // in the topology
  int32_t streams = 0;                           // per device
  int32_t exchanges = 0;
  int32_t steps = 0;
  int32_t messages = 0;
};
// `messages`: those of exchanges with Turn::ahead count twice.
EngineRoom engine_room(const Topology& topology,
                       int64_t exchanges,
                       int64_t steps,
                       int64_t messages,
                       int64_t streams = 1);
EngineRoom usual_room(const Topology& topology);

class FlowEngine {
 public:
  // `memory` stores the state; other processes may map it at other addresses. Requires: aligned to
  // 16 bytes and of the size of bytes_needed(); all zeros, then formatted once, by any process; one
  // caller at a time. `topology` outlives this.
  static size_t bytes_needed(const EngineRoom& room);
  static void format(std::span<std::byte> memory, const EngineRoom& room);
  FlowEngine(std::span<std::byte> memory, const Topology& topology);
  ~FlowEngine();

  // Returns the exchange. `steps`: in order of rounds. Throws Error(kUs) if the state is full.
  // Requires: `at` is not before a time passed to advance(); a device posts in order of time.
  int post(int device,
           ExchangeKey key,
           int num_members,
           Nanoseconds at,
           std::span<const RoundStep> steps,
           Turn turn = {});

  // Commits events up to `safe`; all later posts are at or after it. Stops after the first instant
  // in which an exchange ends, because waiting devices may then post, and returns true; else
  // returns false.
  bool advance(Nanoseconds safe);
  // Returns the time of the next event, by the posts so far.
  std::optional<Nanoseconds> next_event() const;

  struct Times {
    Nanoseconds start, end;  // the device's own part
    Nanoseconds complete;
  };
  std::optional<Times> completion(int exchange) const;  // nullopt: incomplete
  int device_of(int exchange) const;
  // Releases an exchange, which may still run. Requires: it is not queried again.
  void release(int exchange);
  // Stops all messages of the device, including those in transit to or from it.
  void remove(int device);

  Nanoseconds now() const;
  // Returns whether an exchange of the device is running.
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
  // Returns the exchange that receives the message, if it is in its round.
  Exchange* receiver(const Message& message) const;
  Message* find_early(const Message& message) const;
  void announce(const Message& message);
  void take_early(int32_t message);
  void receive_early(int32_t stream, Exchange& exchange);

  const Topology& topology_;
  std::unique_ptr<Memory> memory_;
  Bundles bundles_;
  // Buffers of one instant, kept to reuse their memory.
  std::vector<int32_t> finished_, sent_;  // messages
  std::vector<int32_t> entering_;         // streams that may enter a round
};

}  // namespace medley
