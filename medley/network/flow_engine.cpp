#include "medley/network/flow_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int32_t kReceives = -1;  // peer of a step that counts a round's messages
constexpr uint64_t kBuckets = 256;

}  // namespace

struct FlowEngine::Header {
  EngineRoom room;
  int32_t num_starts;
  int32_t num_ended;  // exchanges, in the current instant
  int64_t now;
};

struct FlowEngine::Device {
  int32_t parts;  // started and not ended
  uint32_t posts;
  int32_t removed;
};

struct FlowEngine::Stream {
  int64_t free;        // end of the exchange before the head
  int64_t start;       // time of the head's turn, if it is not running
  int32_t head, tail;  // exchanges that have not ended
  int32_t running;     // the head has started
  int32_t early;       // messages for later rounds, one per round
};

// Fits into one cache line.
struct FlowEngine::Exchange {
  int32_t next;
  int32_t device, stream, instance;  // stream: over all devices
  int32_t step;                      // next to begin
  int32_t round;                     // current round
  int32_t sends, receives;           // missing in the round
  uint32_t number;                   // of the device's posts
  bool ahead;                        // its part starts with its first message
  bool announces;                    // announces its messages to such parts
  bool ended, released;
  int64_t posted, start, end;  // start: kNever until its part has started
};

// An exchange of a group.
struct FlowEngine::Instance {
  int32_t next;  // in its bucket
  int32_t num_members, num_posted, num_freed;
  Turn turn;
  ExchangeKey key;
  int64_t last_post;
};

// A message to send, or the number of messages in a round.
struct FlowEngine::Step {
  int32_t next;
  int32_t round, peer;
  int64_t amount;  // bytes or messages
};

struct FlowEngine::Message {
  int32_t next;  // in its connection, in transit, or among early ones
  int32_t instance, round;
  int32_t from, to;
  int32_t stream;  // destination stream
  int32_t sender;  // sending exchange
  int64_t bytes;   // or their number, if early; 0 if only announced
  int64_t due;     // arrival
};

struct FlowEngine::Queue {
  int32_t head, tail;  // messages
};

// Orders the heap of streams to start, earliest on top.
struct FlowEngine::StartsLater {
  const Stream* streams;
  bool operator()(int32_t a, int32_t b) const { return streams[a].start > streams[b].start; }
};

struct FlowEngine::Memory {
  Memory(MemoryLayout& layout, const EngineRoom& room)
      : header(layout.place<Header>(1)),
        devices(layout.place<Device>(room.devices)),
        streams(layout.place<Stream>(int64_t{room.devices} * room.streams)),
        connections(layout.place<Queue>(int64_t{room.devices} * room.devices)),
        flying(layout.place<Queue>(room.networks)),
        starts(layout.place<int32_t>(int64_t{room.devices} * room.streams)),
        buckets(layout.place<int32_t>(kBuckets)),
        exchanges(layout, room.exchanges, "exchanges"),
        instances(layout, room.exchanges, "groups"),
        steps(layout, room.steps, "messages of rounds"),
        messages(layout, room.messages, "messages"),
        bundles(layout, room.devices, room.links, room.messages) {}

  Header* header;
  Device* devices;
  Stream* streams;     // [device * streams + stream]
  Queue* connections;  // [from * devices + to]; the bytes of the head flow
  Queue* flying;       // [network] in transit, all of equal latency
  int32_t* starts;     // a heap of streams by Stream::start
  int32_t* buckets;    // of instances, by key
  Pool<Exchange> exchanges;
  Pool<Instance> instances;
  Pool<Step> steps;
  Pool<Message> messages;
  Bundles::Memory bundles;
};

EngineRoom engine_room(
    const Topology& topology, int64_t exchanges, int64_t steps, int64_t messages, int64_t streams) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 1;
  MEDLEY_CHECK(std::max({exchanges, steps, messages, streams * topology.num_devices()}) <= kMost);
  return {topology.num_devices(),
          static_cast<int32_t>(topology.links().size()),
          static_cast<int32_t>(topology.cluster().networks.size()),
          static_cast<int32_t>(streams),
          static_cast<int32_t>(exchanges),
          static_cast<int32_t>(steps),
          static_cast<int32_t>(messages)};
}

// An unused stream costs only address space.
EngineRoom usual_room(const Topology& topology) {
  const int64_t n = topology.num_devices();
  return engine_room(topology,
                     256 * n + 1024,
                     4096 * n + 65536,
                     4 * n * n + 256 * n + 4096,
                     std::min<int64_t>(2 + 3 * n * n, 4096));
}

size_t FlowEngine::bytes_needed(const EngineRoom& room) {
  MemoryLayout layout(nullptr);
  const Memory memory(layout, room);
  return layout.size();
}

void FlowEngine::format(std::span<std::byte> memory, const EngineRoom& room) {
  MEDLEY_CHECK(memory.size() >= bytes_needed(room));
  MemoryLayout(memory.data()).place<Header>(1)->room = room;
}

FlowEngine::FlowEngine(std::span<std::byte> memory, const Topology& topology)
    : topology_(topology),
      memory_([&] {
        const EngineRoom& room = MemoryLayout(memory.data()).place<Header>(1)->room;
        MEDLEY_CHECK_EQ(room.devices, topology.num_devices());
        MEDLEY_CHECK(memory.size() >= bytes_needed(room));
        MemoryLayout layout(memory.data());
        return std::make_unique<Memory>(layout, room);
      }()),
      bundles_(memory_->bundles, topology) {}

FlowEngine::~FlowEngine() = default;

int32_t& FlowEngine::bucket(ExchangeKey key) {
  const uint64_t mixed = (key.group + static_cast<uint64_t>(key.number)) * 0x9e3779b97f4a7c15;
  return memory_->buckets[(mixed >> 32) % kBuckets];
}

int32_t FlowEngine::find_instance(ExchangeKey key, int num_members, Turn turn) {
  int32_t& first = bucket(key);
  for (int32_t i = first; i != 0; i = memory_->instances[i].next)
    if (memory_->instances[i].key == key) {
      MEDLEY_CHECK_EQ(memory_->instances[i].num_members, num_members);
      MEDLEY_CHECK(memory_->instances[i].turn == turn);
      return i;
    }
  const int32_t index = memory_->instances.take();
  Instance& instance = memory_->instances[index];
  instance.key = key;
  instance.num_members = num_members;
  instance.turn = turn;
  instance.next = first;
  first = index;
  return index;
}

int FlowEngine::post(int device,
                     ExchangeKey key,
                     int num_members,
                     Nanoseconds time,
                     std::span<const RoundStep> steps,
                     Turn turn) {
  const EngineRoom& room = memory_->header->room;
  MEDLEY_CHECK(device >= 0 && device < room.devices);
  MEDLEY_CHECK(time.value >= memory_->header->now);
  MEDLEY_CHECK(!memory_->devices[device].removed);
  if (turn.stream < 0 || turn.stream >= room.streams)
    throw Error(Blame::kUs, fmt::format("network: no more room for streams: {}", room.streams));
  const int32_t number = device * room.streams + turn.stream;
  Stream& stream = memory_->streams[number];
  const int32_t instance = find_instance(key, num_members, turn);
  const int32_t index = memory_->exchanges.take();
  Exchange& exchange = memory_->exchanges[index];
  exchange.device = device;
  exchange.stream = number;
  exchange.number = memory_->devices[device].posts++;
  exchange.instance = instance;
  exchange.posted = time.value;
  exchange.start = kNever;
  exchange.ahead = exchange.announces = turn.ahead;
  exchange.round = -1;
  int32_t* link = &exchange.step;
  int32_t receives = 0;  // step with the round's count
  int last_round = 0;
  for (const RoundStep& step : steps) {
    MEDLEY_CHECK(step.round >= last_round && step.peer != device && step.bytes >= 0);
    if (step.round > last_round) receives = 0;
    last_round = step.round;
    if (step.send) exchange.ahead = false;
    if (!step.send && receives != 0) {
      ++memory_->steps[receives].amount;
      continue;
    }
    const int32_t item = memory_->steps.take();
    if (!step.send) receives = item;
    memory_->steps[item] =
        step.send ? Step{0, step.round, step.peer, step.bytes} : Step{0, step.round, kReceives, 1};
    *link = item;
    link = &memory_->steps[item].next;
  }
  Instance& group = memory_->instances[instance];
  ++group.num_posted;
  MEDLEY_CHECK(group.num_posted <= num_members);
  group.last_post = std::max(group.last_post, time.value);
  if (stream.head == 0) {
    stream.head = stream.tail = index;
    await_start(number);
  } else {
    memory_->exchanges[stream.tail].next = index;
    stream.tail = index;
  }
  return index;
}

void FlowEngine::await_start(int32_t number) {
  Stream& stream = memory_->streams[number];
  stream.start = std::max(stream.free, memory_->exchanges[stream.head].posted);
  int32_t* starts = memory_->starts;
  starts[memory_->header->num_starts++] = number;
  std::push_heap(starts, starts + memory_->header->num_starts, StartsLater{memory_->streams});
}

std::optional<Nanoseconds> FlowEngine::next_event() const {
  const Header& header = *memory_->header;
  int64_t next = bundles_.next_end();
  for (int32_t network = 0; network < header.room.networks; ++network)
    if (const int32_t first = memory_->flying[network].head; first != 0)
      next = std::min(next, memory_->messages[first].due);
  if (header.num_starts > 0) next = std::min(next, memory_->streams[memory_->starts[0]].start);
  if (next == kNever) return std::nullopt;
  return Nanoseconds{next};
}

bool FlowEngine::advance(Nanoseconds safe) {
  while (const auto next = next_event()) {
    if (*next > safe) return false;
    memory_->header->now = next->value;
    memory_->header->num_ended = 0;
    process();
    if (memory_->header->num_ended > 0) return true;
  }
  return false;
}

// Processes all events of this instant, including the ones that they cause in it, then shares the
// links once.
void FlowEngine::process() {
  finish_due();
  while (true) {
    arrive_due();
    start_due();
    if (entering_.empty() && sent_.empty()) break;
    if (entering_.empty()) line_up();
    for (size_t i = 0; i < entering_.size(); ++i) enter_rounds(entering_[i]);  // may add more
    entering_.clear();
  }
  bundles_.share(memory_->header->now);
}

void FlowEngine::start_due() {
  Header& header = *memory_->header;
  int32_t* starts = memory_->starts;
  while (header.num_starts > 0 && memory_->streams[starts[0]].start <= header.now) {
    std::pop_heap(starts, starts + header.num_starts, StartsLater{memory_->streams});
    const int32_t number = starts[--header.num_starts];
    Stream& stream = memory_->streams[number];
    Exchange& exchange = memory_->exchanges[stream.head];
    if (!exchange.ahead) start_part(exchange);
    stream.running = 1;
    entering_.push_back(number);
  }
}

void FlowEngine::start_part(Exchange& exchange) {
  if (exchange.start != kNever) return;
  exchange.start = memory_->header->now;
  ++memory_->devices[exchange.device].parts;
}

void FlowEngine::finish_due() {
  finished_.clear();
  bundles_.take_ended(memory_->header->now, finished_);
  for (int32_t index : finished_) {
    const Message& message = memory_->messages[index];
    Queue& queue = memory_->connections[message.from * memory_->header->room.devices + message.to];
    bool begun = false;
    while (!begun) {  // messages without bytes end immediately
      const int32_t next = queue.head = memory_->messages[index].next;
      leave(index);
      if (next == 0) break;
      begun = begin(next);
      index = next;
    }
  }
}

void FlowEngine::arrive_due() {
  for (int32_t network = 0; network < memory_->header->room.networks; ++network) {
    Queue& queue = memory_->flying[network];
    while (queue.head != 0 && memory_->messages[queue.head].due <= memory_->header->now) {
      const int32_t index = queue.head;
      queue.head = memory_->messages[index].next;
      arrive(index);
    }
  }
}

FlowEngine::Exchange* FlowEngine::receiver(const Message& message) const {
  const Stream& stream = memory_->streams[message.stream];
  if (!stream.running) return nullptr;
  Exchange& head = memory_->exchanges[stream.head];
  return head.instance == message.instance && head.round == message.round ? &head : nullptr;
}

void FlowEngine::arrive(int32_t index) {
  const Message& message = memory_->messages[index];
  if (!memory_->devices[message.to].removed) {
    Exchange* exchange = receiver(message);
    if (!exchange) return take_early(index);
    if (--exchange->receives == 0 && exchange->sends == 0) entering_.push_back(exchange->stream);
  }
  memory_->messages.give_back(index);
}

FlowEngine::Message* FlowEngine::find_early(const Message& message) const {
  for (int32_t i = memory_->streams[message.stream].early; i != 0; i = memory_->messages[i].next) {
    Message& other = memory_->messages[i];
    if (other.instance == message.instance && other.round == message.round) return &other;
  }
  return nullptr;
}

// Notifies a receiver that posted ahead of the first message.
void FlowEngine::announce(const Message& message) {
  if (Exchange* exchange = receiver(message)) return start_part(*exchange);
  if (find_early(message)) return;
  const int32_t index = memory_->messages.take();
  Message& early = memory_->messages[index];
  Stream& stream = memory_->streams[message.stream];
  early = message;
  early.bytes = 0;
  early.next = stream.early;
  stream.early = index;
}

void FlowEngine::take_early(int32_t index) {
  Message& message = memory_->messages[index];
  if (Message* other = find_early(message)) {
    ++other->bytes;
    return memory_->messages.give_back(index);
  }
  Stream& stream = memory_->streams[message.stream];
  message.bytes = 1;
  message.next = stream.early;
  stream.early = index;
}

void FlowEngine::receive_early(int32_t stream, Exchange& exchange) {
  for (int32_t* link = &memory_->streams[stream].early; *link != 0;
       link = &memory_->messages[*link].next) {
    const int32_t index = *link;
    const Message& message = memory_->messages[index];
    if (message.instance != exchange.instance || message.round != exchange.round) continue;
    start_part(exchange);
    exchange.receives -= static_cast<int32_t>(message.bytes);
    *link = message.next;
    return memory_->messages.give_back(index);
  }
}

void FlowEngine::enter_rounds(int32_t number) {
  Stream& stream = memory_->streams[number];
  if (!stream.running) return;
  Exchange& exchange = memory_->exchanges[stream.head];
  if (memory_->devices[exchange.device].removed) return;
  while (exchange.sends == 0 && exchange.receives == 0) {
    if (exchange.step == 0) return end_exchange(number);
    enter_round(number, exchange);
  }
}

void FlowEngine::enter_round(int32_t stream, Exchange& exchange) {
  exchange.round = memory_->steps[exchange.step].round;
  while (exchange.step != 0 && memory_->steps[exchange.step].round == exchange.round) {
    const int32_t item = exchange.step;
    const Step step = memory_->steps[item];
    exchange.step = step.next;
    memory_->steps.give_back(item);
    if (step.peer == kReceives)
      exchange.receives += static_cast<int32_t>(step.amount);
    else if (!memory_->devices[step.peer].removed)
      send(stream, step);
  }
  receive_early(stream, exchange);
}

void FlowEngine::send(int32_t stream, const Step& step) {
  const int32_t sender = memory_->streams[stream].head;
  Exchange& exchange = memory_->exchanges[sender];
  const int device = exchange.device;
  const int32_t index = memory_->messages.take();
  Message& message = memory_->messages[index];
  message.instance = exchange.instance;
  message.round = step.round;
  message.from = device;
  message.to = step.peer;
  message.stream = stream + (step.peer - device) * memory_->header->room.streams;
  message.sender = sender;
  message.bytes = step.amount;
  if (exchange.announces) announce(message);
  ++exchange.sends;
  sent_.push_back(index);
  if (memory_->header->room.streams == 1) line_up();  // posts are ordered
}

// Messages of a device on several streams in one instant are sent in post order, even if some were
// known later.
void FlowEngine::line_up() {
  if (sent_.size() > 1)
    std::stable_sort(sent_.begin(), sent_.end(), [&](int32_t a, int32_t b) {
      return memory_->exchanges[memory_->messages[a].sender].number <
             memory_->exchanges[memory_->messages[b].sender].number;
    });
  for (const int32_t index : sent_) {
    const Message& message = memory_->messages[index];
    Queue& queue = memory_->connections[message.from * memory_->header->room.devices + message.to];
    if (queue.head != 0) {
      memory_->messages[queue.tail].next = index;
      queue.tail = index;
    } else if (begin(index)) {
      queue.head = queue.tail = index;
    } else {
      leave(index);
    }
  }
  sent_.clear();
}

// Handles the departure of a message's last byte.
void FlowEngine::leave(int32_t index) {
  Exchange& sender = memory_->exchanges[memory_->messages[index].sender];
  if (--sender.sends == 0 && sender.receives == 0) entering_.push_back(sender.stream);
  fly(index);
}

// Returns false if there are no bytes.
bool FlowEngine::begin(int32_t index) {
  const Message& message = memory_->messages[index];
  if (message.bytes == 0) return false;
  bundles_.begin(index, message.from, message.to, message.bytes, memory_->header->now);
  return true;
}

void FlowEngine::fly(int32_t index) {
  Message& message = memory_->messages[index];
  const Route route = topology_.route(message.from, message.to);
  message.due = memory_->header->now + route.latency.value;
  message.next = 0;
  Queue& queue = memory_->flying[route.network];
  (queue.head == 0 ? queue.head : memory_->messages[queue.tail].next) = index;
  queue.tail = index;
}

void FlowEngine::end_exchange(int32_t number) {
  Stream& stream = memory_->streams[number];
  const int32_t index = stream.head;
  Exchange& exchange = memory_->exchanges[index];
  start_part(exchange);  // if it receives nothing
  --memory_->devices[exchange.device].parts;
  exchange.end = memory_->header->now;
  exchange.ended = true;
  stream.free = memory_->header->now;
  stream.running = 0;
  stream.head = exchange.next;
  exchange.next = 0;
  ++memory_->header->num_ended;
  if (stream.head != 0) await_start(number);
  if (exchange.released) free_exchange(index);
}

std::optional<FlowEngine::Times> FlowEngine::completion(int index) const {
  const Exchange& exchange = memory_->exchanges[index];
  const Instance& instance = memory_->instances[exchange.instance];
  if (!exchange.ended || instance.num_posted < instance.num_members) return std::nullopt;
  return Times{{exchange.start}, {exchange.end}, {std::max(exchange.end, instance.last_post)}};
}

int FlowEngine::device_of(int exchange) const { return memory_->exchanges[exchange].device; }

void FlowEngine::release(int index) {
  Exchange& exchange = memory_->exchanges[index];
  MEDLEY_CHECK(!exchange.released);
  exchange.released = true;
  if (exchange.ended) free_exchange(index);
}

void FlowEngine::free_exchange(int32_t index) {
  const int32_t group = memory_->exchanges[index].instance;
  memory_->exchanges.give_back(index);
  Instance& instance = memory_->instances[group];
  if (++instance.num_freed < instance.num_members) return;
  int32_t* link = &bucket(instance.key);
  while (*link != group) link = &memory_->instances[*link].next;
  *link = instance.next;
  memory_->instances.give_back(group);
}

// Exchanges that wait for this device never complete; their members detect that.
void FlowEngine::remove(int device) {
  Header& header = *memory_->header;
  memory_->devices[device].removed = 1;
  int32_t* starts = memory_->starts;
  int32_t* end = std::remove_if(starts, starts + header.num_starts, [&](int32_t stream) {
    return stream / header.room.streams == device;
  });
  header.num_starts = static_cast<int32_t>(end - starts);
  std::make_heap(starts, starts + header.num_starts, StartsLater{memory_->streams});
  bundles_.remove(
      [&](int32_t index) {
        const Message& message = memory_->messages[index];
        return message.from == device || message.to == device;
      },
      header.now);
  for (int32_t other = 0; other < header.room.devices; ++other)
    for (Queue* queue : {&memory_->connections[device * header.room.devices + other],
                         &memory_->connections[other * header.room.devices + device]}) {
      for (int32_t dropped = queue->head, next; dropped != 0; dropped = next) {
        next = memory_->messages[dropped].next;
        memory_->messages.give_back(dropped);
      }
      *queue = {};
    }
  bundles_.share(header.now);
}

Nanoseconds FlowEngine::now() const { return {memory_->header->now}; }
bool FlowEngine::communicates(int device) const { return memory_->devices[device].parts != 0; }

}  // namespace medley
