#include "medley/sim/network.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <queue>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

class ExactNetwork final : public SimulatedNetwork {
 public:
  ExactNetwork(const Topology& topology, const EngineRoom& room)
      : memory_(static_cast<std::byte*>(std::calloc(FlowEngine::bytes_needed(room), 1)),
                &std::free),
        engine_(formatted(memory_.get(), room), topology) {}

  int post(const NetworkPost& post) override {
    return engine_.post(post.device,
                        post.key,
                        static_cast<int>(post.exchanges->devices.size()),
                        post.at,
                        post.exchanges->steps[at(post.member)],
                        post.turn);
  }
  std::optional<FlowEngine::Times> completion(int exchange) override {
    return engine_.completion(exchange);
  }
  void release(int exchange) override { engine_.release(exchange); }
  bool take_completed(std::vector<int>&) override { return false; }
  bool advance(Nanoseconds until) override { return engine_.advance(until); }
  std::optional<Nanoseconds> next_event() const override { return engine_.next_event(); }
  bool communicates(int device) const override { return engine_.communicates(device); }

 private:
  static std::span<std::byte> formatted(std::byte* memory, const EngineRoom& room) {
    MEDLEY_CHECK(memory);
    const std::span<std::byte> bytes(memory, FlowEngine::bytes_needed(room));
    FlowEngine::format(bytes, room);
    return bytes;
  }

  std::unique_ptr<std::byte, void (*)(void*)> memory_;  // zeros, allocated on first use
  FlowEngine engine_;
};

class EstimatedNetwork final : public SimulatedNetwork {
 public:
  EstimatedNetwork(const Topology& topology, int num_streams, bool asked_who)
      : topology_(topology),
        num_streams_(num_streams),
        asked_who_(asked_who),
        streams_(at(topology.num_devices()) * at(num_streams)),
        running_(at(topology.num_devices())),
        links_(topology.links().size()) {}

  int post(const NetworkPost& post) override {
    const int index = static_cast<int>(exchanges_.size());
    const size_t number = instance_of(post);
    Instance& instance = instances_[number];
    instance.last_post = std::max(instance.last_post, post.at);
    const int senders = post.exchanges->num_senders;
    const bool receives = senders > 0 && post.member >= senders;
    exchanges_.push_back(
        {number, post.device * num_streams_ + post.turn.stream, post.members, post.at, receives});
    if (receives) instance.receiving.push_back(index);
    if (instance.end != Nanoseconds{-1}) note_completed(instance);
    if (receives) return index;
    Stream& stream = streams_[at(exchanges_.back().stream)];
    stream.waiting.push_back(index);
    if (stream.waiting.size() == 1) arrive(index);
    while (!ready_.empty()) {
      const size_t ready = ready_.front();
      ready_.pop_front();
      run(ready);
    }
    return index;
  }

  std::optional<FlowEngine::Times> completion(int index) override {
    const Exchange& exchange = exchanges_[at(index)];
    const Instance& instance = instances_[exchange.instance];
    if (instance.end == Nanoseconds{-1}) return std::nullopt;
    if (instance.exchanges->num_senders == 0)
      return FlowEngine::Times{instance.begin, instance.end, instance.end};
    if (instance.num_posted < instance.exchanges->devices.size()) return std::nullopt;
    const Nanoseconds end = exchange.receives ? instance.end : instance.left;
    return FlowEngine::Times{instance.begin, end, std::max(end, instance.last_post)};
  }
  void release(int) override {}
  bool take_completed(std::vector<int>& exchanges) override {
    exchanges.insert(exchanges.end(), completed_.begin(), completed_.end());
    completed_.clear();
    return true;
  }

  // Stops after an instant in which a transfer got its links. Its end is then known, and waiting
  // devices may post messages that precede others.
  bool advance(Nanoseconds until) override {
    bool any = false;
    while (!changes_.empty() && changes_.top().at <= until) {
      const Change change = changes_.top();
      changes_.pop();
      any = true;
      const std::vector<int>& devices = instances_[change.instance].exchanges->devices;
      for (int i = change.first; i < change.last; ++i) running_[at(devices[at(i)])] += change.by;
      if (change.by != 0) continue;
      book(change.instance, change.at);
      until = change.at;
    }
    return any;
  }
  std::optional<Nanoseconds> next_event() const override {
    if (changes_.empty()) return std::nullopt;
    return changes_.top().at;
  }
  bool communicates(int device) const override { return running_[at(device)] > 0; }

 private:
  struct Exchange {
    size_t instance;
    int stream;   // over all devices
    int members;  // in lockstep
    Nanoseconds posted;
    bool receives;
  };
  struct Instance {
    const Exchanges* exchanges;
    ExchangeKey key;
    std::vector<int> here{};       // exchanges reached by their stream
    std::vector<int> receiving{};  // receive-only ones of a transfer
    size_t num_posted = 0, num_here = 0;
    Nanoseconds begin{}, last_post{};
    Nanoseconds left{-1};  // last byte of a transfer
    Nanoseconds end{-1};
  };
  struct Stream {
    std::deque<int> waiting;
    Nanoseconds free;
  };
  // A transfer is ready (0), or members [first, last) begin (1) or end (-1) to communicate.
  struct Change {
    Nanoseconds at;
    int by;
    size_t instance;
    ExchangeKey key;
    int first = 0, last = 0;
    bool operator>(const Change& other) const {
      return std::tie(at, by, key.group, key.number) >
             std::tie(other.at, other.by, other.key.group, other.key.number);
    }
  };

  // Returns the instance of all its members; a post for all of them needs no later search.
  size_t instance_of(const NetworkPost& post) {
    const auto add = [&] {
      instances_.push_back({.exchanges = post.exchanges, .key = post.key});
      return instances_.size() - 1;
    };
    const size_t all = post.exchanges->devices.size();
    if (at(post.members) == all) {
      const size_t number = add();
      instances_[number].num_posted = all;
      return number;
    }
    const auto [place, is_new] = instance_of_.try_emplace({post.key.group, post.key.number});
    if (is_new) place->second = add();
    const size_t number = place->second;
    if ((instances_[number].num_posted += at(post.members)) == all) instance_of_.erase(place);
    return number;
  }

  // Called when the end is known and all have posted.
  void note_completed(const Instance& instance) {
    if (instance.num_posted < instance.exchanges->devices.size()) return;
    completed_.insert(completed_.end(), instance.here.begin(), instance.here.end());
    completed_.insert(completed_.end(), instance.receiving.begin(), instance.receiving.end());
  }

  void arrive(int index) {
    const Exchange& exchange = exchanges_[at(index)];
    Instance& instance = instances_[exchange.instance];
    instance.here.push_back(index);
    instance.num_here += at(exchange.members);
    instance.begin =
        std::max({instance.begin, exchange.posted, streams_[at(exchange.stream)].free});
    const int senders = instance.exchanges->num_senders;
    const size_t awaited = senders > 0 ? at(senders) : instance.exchanges->devices.size();
    if (instance.num_here == awaited) ready_.push_back(exchange.instance);
  }

  void run(size_t index) {
    Instance& instance = instances_[index];
    if (instance.exchanges->num_senders > 0) {
      changes_.push({instance.begin, 0, index, instance.key});
      return;
    }
    instance.end = instance.begin + instance.exchanges->estimate;
    note_completed(instance);
    communicate(index, 0, static_cast<int>(instance.exchanges->devices.size()), instance.end);
    free_streams(instance, instance.end);
  }

  void book(size_t index, Nanoseconds now) {
    Instance& instance = instances_[index];
    instance.begin = now;
    const auto& links = instance.exchanges->bytes_by_link;
    for (const auto& [link, bytes] : links)
      instance.begin = std::max(instance.begin, links_[at(link)]);
    Nanoseconds longest;
    for (const auto& [link, bytes] : links) {
      const Nanoseconds time = occupancy(topology_.links()[at(link)], bytes);
      links_[at(link)] = instance.begin + time;
      longest = std::max(longest, time);
    }
    instance.left = instance.begin + longest;
    instance.end = std::max(instance.left, instance.begin + instance.exchanges->estimate);
    note_completed(instance);
    const int senders = instance.exchanges->num_senders;
    communicate(index, 0, senders, instance.left);
    communicate(index, senders, static_cast<int>(instance.exchanges->devices.size()), instance.end);
    free_streams(instance, instance.left);
    while (!ready_.empty()) {
      const size_t ready = ready_.front();
      ready_.pop_front();
      run(ready);
    }
  }

  void communicate(size_t index, int first, int last, Nanoseconds until) {
    if (!asked_who_) return;
    const Instance& instance = instances_[index];
    changes_.push({instance.begin, 1, index, instance.key, first, last});
    changes_.push({until, -1, index, instance.key, first, last});
  }

  void free_streams(const Instance& instance, Nanoseconds from) {
    for (int index : instance.here) {
      Stream& stream = streams_[at(exchanges_[at(index)].stream)];
      stream.free = from;
      stream.waiting.pop_front();
      if (!stream.waiting.empty()) arrive(stream.waiting.front());
    }
  }

  const Topology& topology_;
  const int num_streams_;
  const bool asked_who_;
  std::vector<Stream> streams_;     // [device * streams + stream]
  std::vector<int> running_;        // [device] running exchanges, as of advance()
  std::vector<Nanoseconds> links_;  // [link] end of its transfers
  std::vector<Exchange> exchanges_;
  std::vector<int> completed_;  // not yet reported
  std::deque<Instance> instances_;
  std::map<std::pair<uint64_t, int64_t>, size_t> instance_of_;  // not posted by all
  std::deque<size_t> ready_;
  std::priority_queue<Change, std::vector<Change>, std::greater<>> changes_;
};

}  // namespace

std::unique_ptr<SimulatedNetwork> exact_network(const Topology& topology, const EngineRoom& room) {
  return std::make_unique<ExactNetwork>(topology, room);
}

std::unique_ptr<SimulatedNetwork> estimated_network(const Topology& topology,
                                                    int num_streams,
                                                    bool asked_who) {
  return std::make_unique<EstimatedNetwork>(topology, num_streams, asked_who);
}

}  // namespace medley
