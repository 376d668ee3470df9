#include "medley/sim/network.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <queue>

#include "medley/base/error.h"

namespace medley {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }

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
                        post.exchanges->steps[at(post.member)]);
  }
  std::optional<FlowEngine::Times> completion(int exchange) override {
    return engine_.completion(exchange);
  }
  void release(int exchange) override { engine_.release(exchange); }
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

  std::unique_ptr<std::byte, void (*)(void*)> memory_;  // of zeros that are not there until used
  FlowEngine engine_;
};

class EstimatedNetwork final : public SimulatedNetwork {
 public:
  explicit EstimatedNetwork(const Topology& topology) : streams_(at(topology.num_devices())) {}

  int post(const NetworkPost& post) override {
    const int index = static_cast<int>(exchanges_.size());
    const auto [place, is_new] =
        instance_of_.try_emplace({post.key.group, post.key.number}, instances_.size());
    if (is_new) instances_.push_back({post.exchanges, {}, {}});
    exchanges_.push_back({place->second, post.device, post.at});
    Stream& stream = streams_[at(post.device)];
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
    const Instance& instance = instances_[exchanges_[at(index)].instance];
    if (instance.end == Nanoseconds{-1}) return std::nullopt;
    return FlowEngine::Times{instance.begin, instance.end, instance.end};
  }
  void release(int) override {}
  bool advance(Nanoseconds until) override {
    bool any = false;
    for (; !changes_.empty() && changes_.top().at <= until; changes_.pop()) {
      const Change& change = changes_.top();
      for (int device : instances_[change.instance].here) streams_[at(device)].running += change.by;
      any = true;
    }
    return any;
  }
  std::optional<Nanoseconds> next_event() const override {
    if (changes_.empty()) return std::nullopt;
    return changes_.top().at;
  }
  bool communicates(int device) const override { return streams_[at(device)].running > 0; }

 private:
  struct Exchange {
    size_t instance;
    int device;
    Nanoseconds posted;
  };
  struct Instance {
    const Exchanges* exchanges;
    std::vector<int> here;  // devices whose stream has come to it
    Nanoseconds begin;
    Nanoseconds end{-1};
  };
  struct Stream {
    std::deque<int> waiting;
    Nanoseconds free;
    int running = 0;  // exchanges under way, once advance() has come to their beginning
  };
  struct Change {
    Nanoseconds at;
    int by;  // 1: begins, -1: ends
    size_t instance;
    bool operator>(const Change& other) const { return at > other.at; }
  };

  void arrive(int index) {
    const Exchange& exchange = exchanges_[at(index)];
    Instance& instance = instances_[exchange.instance];
    instance.here.push_back(exchange.device);
    instance.begin =
        std::max({instance.begin, exchange.posted, streams_[at(exchange.device)].free});
    if (instance.here.size() == instance.exchanges->devices.size())
      ready_.push_back(exchange.instance);
  }

  void run(size_t index) {
    Instance& instance = instances_[index];
    instance.end = instance.begin + instance.exchanges->estimate;
    for (int device : instance.here) {
      Stream& stream = streams_[at(device)];
      stream.free = instance.end;
      stream.waiting.pop_front();
      if (!stream.waiting.empty()) arrive(stream.waiting.front());
    }
    changes_.push({instance.begin, 1, index});
    changes_.push({instance.end, -1, index});
  }

  std::vector<Stream> streams_;  // [device]
  std::vector<Exchange> exchanges_;
  std::deque<Instance> instances_;
  std::map<std::pair<uint64_t, int64_t>, size_t> instance_of_;
  std::deque<size_t> ready_;
  std::priority_queue<Change, std::vector<Change>, std::greater<>> changes_;
};

}  // namespace

std::unique_ptr<SimulatedNetwork> exact_network(const Topology& topology, const EngineRoom& room) {
  return std::make_unique<ExactNetwork>(topology, room);
}

std::unique_ptr<SimulatedNetwork> estimated_network(const Topology& topology) {
  return std::make_unique<EstimatedNetwork>(topology);
}

}  // namespace medley
