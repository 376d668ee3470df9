// Compares the engine with a plain implementation of its rules: every message by itself, every rate
// recomputed at every instant, among all messages of the cluster.

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <random>

#include "medley/base/at.h"
#include "medley/network/collectives.h"
#include "medley/network/estimate.h"
#include "medley/network/flow_engine.h"

namespace medley {
namespace {

using Units = unsigned __int128;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Posted {
  int64_t number = 0;
  int64_t time = 0;
  std::vector<RoundStep> steps;
  Turn turn;
};
using Posts = std::vector<std::vector<Posted>>;                     // [device], by time
using Ends = std::map<std::pair<int, int64_t>, FlowEngine::Times>;  // (device, number)

class Reference {
 public:
  Reference(const Topology& topology, const Posts& posts)
      : topology_(topology), capacities_(link_rates(topology)) {
    std::map<std::pair<int, int>, std::deque<Posted>> by_stream;
    for (size_t device = 0; device < posts.size(); ++device)
      for (const Posted& each : posts[device]) {
        by_stream[{static_cast<int>(device), each.turn.stream}].push_back(each);
        last_post_[each.number] = std::max(last_post_[each.number], each.time);
      }
    for (auto& [key, of_stream] : by_stream) {
      streams_.push_back({});
      streams_.back().device = key.first;
      streams_.back().posts = std::move(of_stream);
    }
  }

  Ends run() {
    for (int64_t next; (next = next_event()) != kNever;) {
      for (Message& message : messages_)
        if (message.rate > 0) {
          const Units sent = Units{message.rate} * static_cast<uint64_t>(next - now_);
          message.left -= std::min(message.left, sent);
        }
      now_ = next;
      for (Message& message : messages_)
        if (message.is_first && message.left <= rounding(message)) leave(message);
      while (arrive() || start() || enter() || line_up()) {
      }
      share();
    }
    return ends_;
  }

 private:
  struct Stream;
  struct Message {
    Stream* sender;
    int from, to;
    int64_t number;
    int round;
    Units left;
    bool is_first = false;  // in its connection: its bytes flow
    uint64_t rate = 0;
    int64_t arrives = kNever;
  };
  struct Stream {
    int device = 0;
    std::deque<Posted> posts;  // the first runs, or waits for its time
    bool runs = false;
    int64_t free = 0, started = 0;
    int round = -1;
    int sends = 0;  // in transit in the round
  };

  static Units rounding(const Message& message) { return message.rate >> kRoundingBits; }
  int64_t end(const Message& message) const {
    if (!message.is_first) return kNever;
    if (message.left <= rounding(message)) return now_;
    return now_ + static_cast<int64_t>((message.left - rounding(message) + message.rate - 1) /
                                       message.rate);
  }
  int64_t start(const Stream& stream) const {
    if (stream.runs || stream.posts.empty()) return kNever;
    return std::max(stream.free, stream.posts.front().time);
  }
  int64_t next_event() const {
    int64_t next = kNever;
    for (const Message& message : messages_) next = std::min({next, end(message), message.arrives});
    for (const Stream& stream : streams_) next = std::min(next, start(stream));
    return next;
  }

  void leave(Message& message) {
    message.is_first = false;
    message.rate = 0;
    message.left = 0;
    message.arrives = now_ + topology_.route(message.from, message.to).latency.value;
    --message.sender->sends;
    for (Message& other : messages_)
      if (other.from == message.from && other.to == message.to && other.arrives == kNever) {
        other.is_first = true;
        if (other.left == 0) leave(other);
        return;
      }
  }

  // Returns whether messages for the stream's round are missing.
  bool lacks(const Stream& stream) {
    int expected = 0;
    for (const RoundStep& step : stream.posts.front().steps)
      expected += !step.send && step.round == stream.round;
    return expected > received_[{stream.device, stream.posts.front().number, stream.round}];
  }

  bool arrive() {
    return std::erase_if(messages_, [&](const Message& message) {
             if (message.arrives > now_) return false;
             ++received_[{message.to, message.number, message.round}];
             return true;
           }) > 0;
  }
  bool start() {
    bool any = false;
    for (Stream& stream : streams_) {
      if (start(stream) > now_) continue;
      any = stream.runs = true;
      stream.started = now_;
      stream.round = -1;
    }
    return any;
  }
  // Returns the start of the part of the stream's first exchange.
  int64_t started(const Stream& stream) {
    const Posted& posted = stream.posts.front();
    bool sends = false;
    for (const RoundStep& step : posted.steps) sends = sends || step.send;
    if (!posted.turn.ahead || sends) return stream.started;
    const auto first = first_message_.find({stream.device, posted.number});
    return first == first_message_.end() ? now_ : std::max(stream.started, first->second);
  }
  bool enter() {
    bool any = false;
    for (Stream& each : streams_) {
      if (!each.runs || each.sends > 0 || lacks(each)) continue;
      any = true;
      int next = std::numeric_limits<int>::max();
      for (const RoundStep& step : each.posts.front().steps)
        if (step.round > each.round) next = std::min(next, step.round);
      if (next == std::numeric_limits<int>::max()) {
        const int64_t number = each.posts.front().number;
        ends_[{each.device, number}] = {
            {started(each)}, {now_}, {std::max(now_, last_post_[number])}};
        each.free = now_;
        each.runs = false;
        each.posts.pop_front();
        continue;
      }
      each.round = next;
      for (const RoundStep& step : each.posts.front().steps)
        if (step.send && step.round == next) send(each, step);
    }
    return any;
  }
  void send(Stream& stream, const RoundStep& step) {
    const int64_t number = stream.posts.front().number;
    first_message_.try_emplace({step.peer, number}, now_);
    sent_.push_back({&stream,
                     stream.device,
                     step.peer,
                     number,
                     step.round,
                     Units{static_cast<uint64_t>(step.bytes)} << kUnitBits});
    ++stream.sends;
  }
  // Numbers grow along the posts of each device.
  bool line_up() {
    std::stable_sort(sent_.begin(), sent_.end(), [](const Message& a, const Message& b) {
      return a.number < b.number;
    });
    for (const Message& each : sent_) {
      const bool waits = std::any_of(messages_.begin(), messages_.end(), [&](const Message& other) {
        return other.from == each.from && other.to == each.to && other.arrives == kNever;
      });
      messages_.push_back(each);
      messages_.back().is_first = !waits;
      if (!waits && each.left == 0) leave(messages_.back());
    }
    const bool any = !sent_.empty();
    sent_.clear();
    return any;
  }

  // Progressive filling.
  void share() {
    std::vector<uint64_t> left = capacities_;
    for (Message& message : messages_) message.rate = 0;
    while (true) {
      std::vector<uint64_t> growing(left.size(), 0);
      for (const Message& message : messages_)
        if (message.is_first && message.rate == 0)
          for (const Route along = topology_.route(message.from, message.to);
               int link : along.span())
            ++growing[at(link)];
      uint64_t least = std::numeric_limits<uint64_t>::max();
      for (size_t link = 0; link < left.size(); ++link)
        if (growing[link] > 0) least = std::min(least, left[link] / growing[link]);
      if (least == std::numeric_limits<uint64_t>::max()) return;
      std::vector<bool> full(left.size());
      for (size_t link = 0; link < left.size(); ++link)
        full[link] = growing[link] > 0 && left[link] / growing[link] == least;
      for (Message& message : messages_) {
        if (!message.is_first || message.rate > 0) continue;
        const Route route = topology_.route(message.from, message.to);
        const auto links = route.span();
        if (std::none_of(links.begin(), links.end(), [&](int link) { return full[at(link)]; }))
          continue;
        message.rate = least;
        for (int link : links) left[at(link)] -= least;
      }
    }
  }

  const Topology& topology_;
  std::vector<uint64_t> capacities_;
  std::deque<Stream> streams_;
  std::vector<Message> sent_;                              // in this instant
  std::deque<Message> messages_;                           // not arrived
  std::map<std::tuple<int, int64_t, int>, int> received_;  // [device, number, round]
  std::map<int64_t, int64_t> last_post_;
  std::map<std::pair<int, int64_t>, int64_t> first_message_;  // [device, number] time sent
  int64_t now_ = 0;
  Ends ends_;
};

// Returns nodes of several devices: optional fabric, one or two pools, trunks, odd bandwidths.
Cluster random_reference(std::mt19937& random) {
  Cluster cluster;
  const auto any = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  std::vector<std::string> names;
  for (int pool = 0; pool < 1 + static_cast<int>(random() % 2); ++pool) {
    NodePool nodes;
    nodes.name = names.emplace_back("p" + std::to_string(pool));
    nodes.count = 1 + static_cast<int>(random() % 3);
    nodes.devices_per_node = 1 + static_cast<int>(random() % 3);
    cluster.pools.push_back(nodes);
  }
  cluster.devices = list_devices(cluster.pools);
  if (random() % 2)
    cluster.networks.push_back({"fabric", true, {}, any(1e9, 1e11), any(0, 4e-6), std::nullopt});
  cluster.networks.push_back({"lan", false, names, any(1e7, 3e9), any(0, 3e-5), std::nullopt});
  if (random() % 2) cluster.networks.back().trunk = any(1e7, 3e9);
  return cluster;
}

// Some devices send to the others, which may have posted ahead.
void post_transfer(const Topology& topology,
                   std::mt19937& random,
                   int64_t number,
                   std::vector<int64_t>& clock,
                   Posts& posts) {
  const int n = topology.num_devices();
  const Turn turn{1 + static_cast<int>(random() % 2), random() % 4 != 0};
  std::vector<bool> sends;
  for (int device = 0; device < n; ++device) sends.push_back(random() % 2);
  std::vector<std::vector<RoundStep>> steps(posts.size());
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      if (!sends[at(from)] || sends[at(to)]) continue;
      if (random() % 4 == 0) continue;
      const auto bytes = static_cast<int64_t>(1 + random() % 60'000);
      steps[at(from)].push_back({0, to, bytes, true});
      steps[at(to)].push_back({0, from, bytes, false});
    }
  for (size_t device = 0; device < posts.size(); ++device) {
    if (sends[device]) clock[device] += static_cast<int64_t>(random() % 40'000);
    posts[device].push_back({number, clock[device], steps[device], turn});
  }
}

// Returns random collectives, algorithms and members, posted at random times, and transfers on
// other streams.
Posts random_posts(const Topology& topology, std::mt19937& random) {
  const int n = topology.num_devices();
  Posts posts(at(n));
  std::vector<int64_t> clock(posts.size());
  for (int64_t number = 0; number < 9; ++number) {
    if (n > 1 && random() % 2) {
      post_transfer(topology, random, number, clock, posts);
      continue;
    }
    Collective collective{
        static_cast<CommunicationKind>(random() % at(CommunicationKind::kTransfer)), {}, {}, 1};
    for (int device = 0; device < n; ++device)
      if (random() % 4 != 0) collective.devices.push_back(device);
    const size_t members = collective.devices.size();
    if (members < 2) continue;
    const bool is_even = random() % 2;
    for (size_t i = 0; i < num_lengths(collective.kind, members); ++i)
      collective.lengths.push_back(is_even ? 20'000 : static_cast<int64_t>(random() % 60'000));
    std::vector<const Algorithm*> fitting;
    for (const Algorithm& each : algorithms())
      if (fits(each, collective.kind)) fitting.push_back(&each);
    const std::vector<Message> sent = messages(
        *fitting[random() % fitting.size()], collective, group_by_node(collective, topology));
    const auto steps = steps_of_members(sent, collective.devices);
    for (size_t i = 0; i < members; ++i) {
      const auto device = at(collective.devices[i]);
      if (random() % 3) clock[device] += static_cast<int64_t>(random() % 40'000);
      posts[device].push_back({number, clock[device], steps[i], {}});
    }
  }
  return posts;
}

Ends run_engine(const Topology& topology, const Posts& posts) {
  std::vector<std::byte> memory(FlowEngine::bytes_needed(usual_room(topology)));
  FlowEngine::format(memory, usual_room(topology));
  FlowEngine engine(memory, topology);
  std::map<int64_t, int> members;
  for (const auto& of_device : posts)
    for (const Posted& each : of_device) ++members[each.number];
  std::map<std::pair<int, int64_t>, int> exchanges;
  for (size_t device = 0; device < posts.size(); ++device)
    for (const Posted& each : posts[device])
      exchanges[{static_cast<int>(device), each.number}] = engine.post(static_cast<int>(device),
                                                                       {7, each.number},
                                                                       members[each.number],
                                                                       {each.time},
                                                                       each.steps,
                                                                       each.turn);
  while (engine.advance({kNever})) {
  }
  Ends ends;
  for (const auto& [key, exchange] : exchanges)
    if (const auto times = engine.completion(exchange)) ends[key] = *times;
  return ends;
}

TEST(FlowEngine, IsTheReferenceOnRandomNetworks) {
  std::mt19937 random(11);
  size_t compared = 0;
  for (int run = 0; run < 150; ++run) {
    SCOPED_TRACE(run);
    const Topology topology(random_reference(random));
    const Posts posts = random_posts(topology, random);
    const Ends expected = Reference(topology, posts).run();
    const Ends found = run_engine(topology, posts);
    size_t posted = 0;
    for (const auto& of_device : posts) posted += of_device.size();
    ASSERT_EQ(expected.size(), posted);
    ASSERT_EQ(found.size(), posted);
    for (const auto& [key, times] : expected) {
      const FlowEngine::Times& other = found.at(key);
      ASSERT_EQ(std::tie(times.start, times.end, times.complete),
                std::tie(other.start, other.end, other.complete))
          << "device " << key.first << ", exchange " << key.second;
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000u);
}

}  // namespace
}  // namespace medley
