#include "medley/network/flow_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int32_t kNoItem = -1;

size_t at(int64_t index) { return static_cast<size_t>(index); }

// In bytes per nanosecond.
std::vector<double> capacities(const Topology& topology) {
  std::vector<double> result;
  for (const Link& link : topology.links()) result.push_back(link.bandwidth.value * 1e-9);
  return result;
}

}  // namespace

struct FlowEngine::Header {
  EngineRoom room;
  int32_t free_exchange, free_instance, free_step, free_message;
  int32_t first_instance;  // those in use
  int32_t num_active, num_flying;
  int32_t num_sorted;        // of the active messages, those in front
  int32_t num_ended;         // exchanges, in this instant
  int32_t sharing_is_stale;  // the set of active messages has changed since the last share()
  int64_t now;
};

struct FlowEngine::Stream {
  int64_t free;        // when the exchange before the head ended
  int32_t head, tail;  // exchanges that have not ended
  int32_t running;     // the head has started
  int32_t removed;
  int32_t arrived;  // messages for rounds that the device has not entered
};

struct FlowEngine::Exchange {
  int32_t next;
  int32_t device, instance;
  int32_t step;             // the next one to begin
  int32_t round;            // the one that it is in
  int32_t sends, receives;  // of the round, still missing
  int32_t ended, released;
  int64_t posted, start, end;
};

// An exchange of a group.
struct FlowEngine::Instance {
  int32_t next;
  int32_t num_members, num_posted, num_freed;
  ExchangeKey key;
  int64_t last_post;
};

struct FlowEngine::Step {
  int32_t next;
  int32_t round, peer, send;
  int64_t bytes;
};

struct FlowEngine::Message {
  int32_t next;  // in its connection, or among those that arrived early
  int32_t instance, round;
  int32_t from, to;
  int32_t sender;      // the exchange, or kNoItem once removed
  int32_t connection;  // from * devices + to
  int32_t links[3];
  int32_t num_links;
  int64_t latency;
  double remaining, rate;  // bytes, bytes per nanosecond
  int64_t due;             // end of the flow, then the arrival
};

struct FlowEngine::Connection {
  int32_t head, tail;  // messages; the head is active
};

EngineRoom usual_room(int num_devices) {
  const int32_t n = num_devices;
  return {n, 256 * n + 1024, 4096 * n + 65536, 4 * n * n + 256 * n + 4096};
}

namespace {

// Places one array after the other.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}
  template <typename T>
  T* place(size_t count) {
    T* result = reinterpret_cast<T*>(base_ + size_);
    size_ += (count * sizeof(T) + 15) / 16 * 16;
    return result;
  }
  size_t size() const { return size_; }

 private:
  std::byte* base_;
  size_t size_ = 0;
};

}  // namespace

size_t FlowEngine::bytes_needed(const EngineRoom& room) {
  Layout layout(nullptr);
  layout.place<Header>(1);
  layout.place<Stream>(at(room.devices));
  layout.place<Connection>(at(room.devices) * at(room.devices));
  layout.place<Exchange>(at(room.exchanges));
  layout.place<Instance>(at(room.exchanges));
  layout.place<Step>(at(room.steps));
  layout.place<Message>(at(room.messages));
  layout.place<int32_t>(at(room.messages));
  layout.place<int32_t>(at(room.messages));
  return layout.size();
}

// A free list that was never used is the numbers in order: only its head is written here, and
// take() links the rest when it gets there, so that memory nobody uses stays untouched.
void FlowEngine::format(std::span<std::byte> memory, const EngineRoom& room) {
  MEDLEY_CHECK(memory.size() >= bytes_needed(room));
  Layout layout(memory.data());
  Header* header = layout.place<Header>(1);
  std::memset(static_cast<void*>(header), 0, sizeof(Header));
  header->room = room;
  header->first_instance = kNoItem;
  Stream* streams = layout.place<Stream>(at(room.devices));
  for (int32_t i = 0; i < room.devices; ++i) streams[i] = {0, kNoItem, kNoItem, 0, 0, kNoItem};
  Connection* connections = layout.place<Connection>(at(room.devices) * at(room.devices));
  for (size_t i = 0; i < at(room.devices) * at(room.devices); ++i)
    connections[i] = {kNoItem, kNoItem};
}

FlowEngine::FlowEngine(std::span<std::byte> memory, const Topology& topology)
    : topology_(topology), shares_(capacities(topology)) {
  Layout layout(memory.data());
  header_ = layout.place<Header>(1);
  const EngineRoom& room = header_->room;
  MEDLEY_CHECK_EQ(room.devices, topology.num_devices());
  MEDLEY_CHECK(memory.size() >= bytes_needed(room));
  streams_ = layout.place<Stream>(at(room.devices));
  connections_ = layout.place<Connection>(at(room.devices) * at(room.devices));
  exchanges_ = layout.place<Exchange>(at(room.exchanges));
  instances_ = layout.place<Instance>(at(room.exchanges));
  steps_ = layout.place<Step>(at(room.steps));
  messages_ = layout.place<Message>(at(room.messages));
  active_ = layout.place<int32_t>(at(room.messages));
  flying_ = layout.place<int32_t>(at(room.messages));
}

// An item of a free list names the next one in `next`: -1 - index, or 0 (fresh memory) for its own
// successor.
template <typename T>
int FlowEngine::take(int32_t& free, T* items, const char* what) {
  const int32_t room = std::is_same_v<T, Step>      ? header_->room.steps
                       : std::is_same_v<T, Message> ? header_->room.messages
                                                    : header_->room.exchanges;
  const int32_t index = free;
  if (index >= room)
    throw Error(Blame::kUs, fmt::format("emulation: no more room for {}: {}", what, room));
  T& item = items[index];
  free = item.next == 0 ? index + 1 : -1 - item.next;
  item = T{};
  item.next = kNoItem;
  return index;
}

template <typename T>
void FlowEngine::give_back(int32_t& free, T* items, int32_t index) {
  items[index].next = -1 - free;
  free = index;
}

int FlowEngine::find_instance(ExchangeKey key, int num_members) {
  for (int32_t i = header_->first_instance; i != kNoItem; i = instances_[i].next)
    if (instances_[i].key == key) {
      MEDLEY_CHECK_EQ(instances_[i].num_members, num_members);
      return i;
    }
  const int index = take(header_->free_instance, instances_, "groups");
  Instance& instance = instances_[index];
  instance.key = key;
  instance.num_members = num_members;
  instance.next = header_->first_instance;
  header_->first_instance = index;
  return index;
}

int FlowEngine::post(int device,
                     ExchangeKey key,
                     int num_members,
                     Nanoseconds time,
                     std::span<const RoundStep> steps) {
  MEDLEY_CHECK(device >= 0 && device < header_->room.devices);
  MEDLEY_CHECK(time.value >= header_->now);
  Stream& stream = streams_[device];
  MEDLEY_CHECK(!stream.removed);
  const int32_t instance = find_instance(key, num_members);
  const int32_t index = take(header_->free_exchange, exchanges_, "exchanges");
  Exchange& exchange = exchanges_[index];
  exchange.device = device;
  exchange.instance = instance;
  exchange.posted = time.value;
  exchange.round = -1;
  exchange.step = kNoItem;
  int32_t* link = &exchange.step;
  int last_round = 0;
  for (const RoundStep& step : steps) {
    MEDLEY_CHECK(step.round >= last_round && step.peer != device && step.bytes >= 0);
    last_round = step.round;
    const int32_t item = take(header_->free_step, steps_, "messages of rounds");
    steps_[item] = {kNoItem, step.round, step.peer, step.send, step.bytes};
    *link = item;
    link = &steps_[item].next;
  }
  Instance& group = instances_[instance];
  ++group.num_posted;
  MEDLEY_CHECK(group.num_posted <= num_members);
  group.last_post = std::max(group.last_post, time.value);
  (stream.head == kNoItem ? stream.head : exchanges_[stream.tail].next) = index;
  stream.tail = index;
  return index;
}

std::optional<Nanoseconds> FlowEngine::next_event() const {
  int64_t next = kNever;
  for (int32_t i = 0; i < header_->num_active; ++i)
    next = std::min(next, messages_[active_[i]].due);
  for (int32_t i = 0; i < header_->num_flying; ++i)
    next = std::min(next, messages_[flying_[i]].due);
  for (int32_t device = 0; device < header_->room.devices; ++device) {
    const Stream& stream = streams_[device];
    if (stream.head != kNoItem && !stream.running && !stream.removed)
      next = std::min(next, std::max(stream.free, exchanges_[stream.head].posted));
  }
  if (next == kNever) return std::nullopt;
  return Nanoseconds{next};
}

bool FlowEngine::advance(Nanoseconds safe) {
  while (const auto next = next_event()) {
    if (*next > safe) return false;
    const auto elapsed = static_cast<double>(next->value - header_->now);
    for (int32_t i = 0; i < header_->num_active; ++i) {
      Message& message = messages_[active_[i]];
      message.remaining = std::max(0.0, message.remaining - message.rate * elapsed);
    }
    header_->now = next->value;
    header_->num_ended = 0;
    process();
    if (header_->num_ended > 0) return true;
  }
  return false;
}

// All events of this instant, also those that they cause in it; shares the links once, after the
// last.
void FlowEngine::process() {
  while (finish_due() || arrive_due() || start_due()) {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (int32_t device : touched_) enter_rounds(device);
    touched_.clear();
  }
  if (header_->sharing_is_stale) share();
}

bool FlowEngine::start_due() {
  bool any = false;
  for (int32_t device = 0; device < header_->room.devices; ++device) {
    Stream& stream = streams_[device];
    if (stream.head == kNoItem || stream.running || stream.removed) continue;
    Exchange& exchange = exchanges_[stream.head];
    if (std::max(stream.free, exchange.posted) > header_->now) continue;
    exchange.start = header_->now;
    stream.running = 1;
    touched_.push_back(device);
    any = true;
  }
  return any;
}

bool FlowEngine::finish_due() {
  finished_.clear();
  int32_t kept = 0, sorted = 0;
  for (int32_t i = 0; i < header_->num_active; ++i) {
    const int32_t index = active_[i];
    if (messages_[index].due <= header_->now) {
      finished_.push_back(index);
      continue;
    }
    active_[kept++] = index;
    if (i < header_->num_sorted) ++sorted;
  }
  if (finished_.empty()) return false;
  header_->num_active = kept;
  header_->num_sorted = sorted;
  header_->sharing_is_stale = 1;
  for (const int32_t index : finished_) {
    Message& message = messages_[index];
    Connection& queue = connections_[message.connection];
    queue.head = message.next;
    if (queue.head == kNoItem) queue.tail = kNoItem;
    message.next = kNoItem;
    if (message.sender != kNoItem) --exchanges_[message.sender].sends;
    touched_.push_back(message.from);
    fly(index);
    if (queue.head != kNoItem) activate(queue.head);
  }
  return true;
}

bool FlowEngine::arrive_due() {
  bool any = false;
  for (int32_t i = 0; i < header_->num_flying;) {
    const int32_t index = flying_[i];
    Message& message = messages_[index];
    if (message.due > header_->now) {
      ++i;
      continue;
    }
    any = true;
    flying_[i] = flying_[--header_->num_flying];
    Stream& stream = streams_[message.to];
    Exchange* head = stream.running ? &exchanges_[stream.head] : nullptr;
    if (stream.removed) {
      give_back(header_->free_message, messages_, index);
    } else if (head && head->instance == message.instance && head->round == message.round) {
      --head->receives;
      touched_.push_back(message.to);
      give_back(header_->free_message, messages_, index);
    } else {
      message.next = stream.arrived;
      stream.arrived = index;
    }
  }
  return any;
}

void FlowEngine::enter_rounds(int device) {
  Stream& stream = streams_[device];
  if (!stream.running || stream.removed) return;
  Exchange& exchange = exchanges_[stream.head];
  while (exchange.sends == 0 && exchange.receives == 0) {
    if (exchange.step == kNoItem) return end_exchange(device);
    enter_round(device, exchange);
  }
}

void FlowEngine::enter_round(int device, Exchange& exchange) {
  exchange.round = steps_[exchange.step].round;
  while (exchange.step != kNoItem && steps_[exchange.step].round == exchange.round) {
    const int32_t item = exchange.step;
    const Step step = steps_[item];
    exchange.step = step.next;
    give_back(header_->free_step, steps_, item);
    if (streams_[step.peer].removed) {
      exchange.receives += !step.send;  // will not come
      continue;
    }
    if (step.send) {
      ++exchange.sends;
      send(device, exchange, step);
    } else {
      ++exchange.receives;
    }
  }
  int32_t* link = &streams_[device].arrived;
  while (*link != kNoItem) {
    const int32_t index = *link;
    Message& message = messages_[index];
    if (message.instance != exchange.instance || message.round != exchange.round) {
      link = &message.next;
      continue;
    }
    *link = message.next;
    --exchange.receives;
    give_back(header_->free_message, messages_, index);
  }
}

void FlowEngine::send(int device, const Exchange& exchange, const Step& step) {
  const int32_t index = take(header_->free_message, messages_, "messages");
  Message& message = messages_[index];
  message.instance = exchange.instance;
  message.round = step.round;
  message.from = device;
  message.to = step.peer;
  message.sender = static_cast<int32_t>(&exchange - exchanges_);
  message.remaining = static_cast<double>(step.bytes);
  message.connection = device * header_->room.devices + step.peer;
  const Route route = topology_.route(device, step.peer);
  std::copy(route.links.begin(), route.links.end(), message.links);
  message.num_links = route.num_links;
  message.latency = route.latency.value;
  Connection& queue = connections_[message.connection];
  (queue.head == kNoItem ? queue.head : messages_[queue.tail].next) = index;
  queue.tail = index;
  if (queue.head == index) activate(index);
}

void FlowEngine::activate(int index) {
  Message& message = messages_[index];
  message.due = message.remaining > 0 ? kNever : header_->now;
  message.rate = 0;
  active_[header_->num_active++] = index;
  header_->sharing_is_stale = 1;
}

void FlowEngine::fly(int index) {
  Message& message = messages_[index];
  message.due = header_->now + message.latency;
  flying_[header_->num_flying++] = index;
}

// By connections, so that the arithmetic does not depend on the order of events of an instant.
void FlowEngine::share() {
  header_->sharing_is_stale = 0;
  const auto by_connection = [&](int32_t a, int32_t b) {
    return messages_[a].connection < messages_[b].connection;
  };
  int32_t *middle = active_ + header_->num_sorted, *end = active_ + header_->num_active;
  std::sort(middle, end, by_connection);
  std::inplace_merge(active_, middle, end, by_connection);
  header_->num_sorted = header_->num_active;
  flows_.clear();
  for (int32_t i = 0; i < header_->num_active; ++i) {
    const Message& message = messages_[active_[i]];
    flows_.emplace_back(message.links, at(message.num_links));
  }
  const std::vector<double>& rates = shares_.rates(flows_);
  for (int32_t i = 0; i < header_->num_active; ++i) {
    Message& message = messages_[active_[i]];
    message.rate = rates[at(i)];
    // A millionth of a nanosecond is rounding, not time.
    message.due =
        header_->now + static_cast<int64_t>(std::ceil(message.remaining / message.rate - 1e-6));
    message.due = std::max(message.due, header_->now);
  }
}

void FlowEngine::end_exchange(int device) {
  Stream& stream = streams_[device];
  const int32_t index = stream.head;
  Exchange& exchange = exchanges_[index];
  exchange.end = header_->now;
  exchange.ended = 1;
  stream.free = header_->now;
  stream.running = 0;
  stream.head = exchange.next;
  if (stream.head == kNoItem) stream.tail = kNoItem;
  exchange.next = kNoItem;
  ++header_->num_ended;
  if (exchange.released) free_exchange(index);
}

std::optional<FlowEngine::Times> FlowEngine::completion(int index) const {
  const Exchange& exchange = exchanges_[index];
  const Instance& instance = instances_[exchange.instance];
  if (!exchange.ended || instance.num_posted < instance.num_members) return std::nullopt;
  return Times{{exchange.start}, {exchange.end}, {std::max(exchange.end, instance.last_post)}};
}

int FlowEngine::device_of(int exchange) const { return exchanges_[exchange].device; }

void FlowEngine::release(int index) {
  Exchange& exchange = exchanges_[index];
  MEDLEY_CHECK(!exchange.released);
  exchange.released = 1;
  if (exchange.ended) free_exchange(index);
}

void FlowEngine::free_exchange(int index) {
  const int32_t group = exchanges_[index].instance;
  give_back(header_->free_exchange, exchanges_, index);
  Instance& instance = instances_[group];
  if (++instance.num_freed < instance.num_members) return;
  int32_t* link = &header_->first_instance;
  while (*link != group) link = &instances_[*link].next;
  *link = instance.next;
  give_back(header_->free_instance, instances_, group);
}

// Exchanges that wait for this device never complete: their members find out by themselves.
void FlowEngine::remove(int device) {
  streams_[device].removed = 1;
  for (int32_t i = 0; i < header_->num_active;) {
    const int32_t index = active_[i];
    Message& message = messages_[index];
    if (message.from != device && message.to != device) {
      ++i;
      continue;
    }
    std::copy(active_ + i + 1, active_ + header_->num_active, active_ + i);
    --header_->num_active;
    header_->sharing_is_stale = 1;
    header_->num_sorted = 0;
    connections_[message.connection] = {kNoItem, kNoItem};
    for (int32_t dropped = index, next; dropped != kNoItem; dropped = next) {
      next = messages_[dropped].next;
      give_back(header_->free_message, messages_, dropped);
    }
  }
  if (header_->sharing_is_stale) share();
}

Nanoseconds FlowEngine::now() const { return {header_->now}; }
Nanoseconds FlowEngine::stream_free(int device) const { return {streams_[device].free}; }

}  // namespace medley
