#include "medley/network/flow_engine.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <random>

#include "medley/base/error.h"
#include "medley/network/collectives.h"

namespace medley {
namespace {

// Returns n nodes of one device on one switch with ports of 1 byte per ns.
Topology flat(int n, double latency = 0) {
  Cluster cluster;
  NodePool pool;
  pool.name = "p";
  pool.count = n;
  cluster.pools = {pool};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"p"}, 1e9, latency, std::nullopt}};
  return Topology(cluster);
}

// An engine with its own memory.
struct Engine {
  explicit Engine(const Topology& topology)
      : memory(FlowEngine::bytes_needed(usual_room(topology))),
        engine((FlowEngine::format(memory, usual_room(topology)), memory), topology) {}

  int post(int device,
           int64_t number,
           int members,
           int64_t time,
           std::vector<RoundStep> steps,
           Turn turn = {}) {
    return engine.post(device, {0, number}, members, {time}, steps, turn);
  }
  void run() {
    while (engine.advance({int64_t{1} << 60})) {
    }
  }
  int64_t end(int exchange) const {
    const auto times = engine.completion(exchange);
    return times ? times->complete.value : -1;
  }

  std::vector<std::byte> memory;
  FlowEngine engine;
};

// Posts a message as an exchange of its own; returns the receiver's exchange.
int post_message(Engine& engine, int64_t number, int from, int to, int64_t bytes, int64_t time) {
  engine.post(from, number, 2, time, {{0, to, bytes, true}});
  return engine.post(to, number, 2, time, {{0, from, bytes, false}});
}

TEST(FlowEngine, AMessageTakesItsBytesAndTheLatency) {
  const Topology topology = flat(2, 5e-6);
  Engine engine(topology);
  const int exchange = post_message(engine, 0, 0, 1, 1000, 70);
  EXPECT_EQ(engine.end(exchange), -1);
  engine.run();
  EXPECT_EQ(engine.end(exchange), 70 + 1000 + 5000);
}

// The closed form: 1000 bytes alone until 400, then both at half rate. The first has 600 left and
// ends at 400 + 1200. The second has sent 600 by then and continues alone: 400 left, ends at 2000.
TEST(FlowEngine, TwoFlowsShareAThinLink) {
  const Topology topology = flat(3);
  Engine engine(topology);
  const int first = post_message(engine, 0, 0, 2, 1000, 0);
  engine.post(1, 1, 2, 400, {{0, 2, 1000, true}});
  engine.run();
  EXPECT_EQ(engine.end(first), 1600);
  Engine other(topology);  // device 2 receives both in one exchange of three
  other.post(0, 0, 3, 0, {{0, 2, 1000, true}});
  other.post(1, 0, 3, 400, {{0, 2, 1000, true}});
  const int both = other.post(2, 0, 3, 0, {{0, 0, 1000, false}, {0, 1, 1000, false}});
  other.run();
  EXPECT_EQ(other.end(both), 2000);
}

// Both messages go from 0 to 1: the second waits for the first and does not slow it down.
TEST(FlowEngine, OneConnectionIsFirstInFirstOut) {
  const Topology topology = flat(2);
  Engine engine(topology);
  engine.post(0, 0, 2, 0, {{0, 1, 300, true}, {0, 1, 500, true}});
  const int first = engine.post(1, 0, 2, 0, {{0, 0, 300, false}, {0, 0, 500, false}});
  engine.run();
  EXPECT_EQ(engine.end(first), 800);
}

// A stream processes one exchange after another, each after its post.
TEST(FlowEngine, ExchangesOfADeviceQueue) {
  const Topology topology = flat(3);
  Engine engine(topology);
  const int first = post_message(engine, 0, 0, 1, 1000, 0);
  const int second = post_message(engine, 1, 0, 2, 100, 10);
  const int third = post_message(engine, 2, 0, 2, 100, 5000);
  engine.run();
  EXPECT_EQ(engine.end(first), 1000);
  EXPECT_EQ(engine.end(second), 1100);
  EXPECT_EQ(engine.end(third), 5100);
  EXPECT_EQ(engine.engine.completion(second)->start, Nanoseconds{10});
}

// On another stream, the message waits neither for the long one nor for its exchange: both share
// the port of device 0.
TEST(FlowEngine, StreamsDoNotWaitForEachOther) {
  const Topology topology = flat(3);
  Engine engine(topology);
  const int other = post_message(engine, 0, 0, 1, 1000, 0);
  engine.post(0, 1, 2, 10, {{0, 2, 100, true}}, {5});
  const int message = engine.post(2, 1, 2, 0, {{0, 0, 100, false}}, {5});
  engine.run();
  EXPECT_EQ(engine.end(message), 10 + 200);
  EXPECT_EQ(engine.end(other), 1100);
}

// Posted at 0, sent at 70: the device communicates only from then on.
TEST(FlowEngine, PrepostedReceiveStartsWithItsMessage) {
  const Topology topology = flat(2, 5e-9);
  Engine engine(topology);
  const Turn turn{1, true};
  const int receiver = engine.post(1, 0, 2, 0, {{0, 0, 100, false}}, turn);
  const int next = engine.post(1, 1, 2, 0, {{0, 0, 100, false}}, turn);
  EXPECT_FALSE(engine.engine.advance({60}));
  EXPECT_FALSE(engine.engine.communicates(1));
  engine.post(0, 0, 2, 70, {{0, 1, 100, true}}, turn);
  engine.post(0, 1, 2, 90, {{0, 1, 100, true}}, turn);
  EXPECT_FALSE(engine.engine.advance({80}));
  EXPECT_TRUE(engine.engine.communicates(1));
  engine.run();
  EXPECT_EQ(engine.engine.completion(receiver)->start, Nanoseconds{70});
  EXPECT_EQ(engine.end(receiver), 175);
  // The message is in transit since 170, but the stream is busy until 175.
  EXPECT_EQ(engine.engine.completion(next)->start, Nanoseconds{175});
  EXPECT_EQ(engine.end(next), 275);
  EXPECT_FALSE(engine.engine.communicates(1));
}

TEST(FlowEngine, AStreamThatThereIsNoRoomForIsAnError) {
  const Topology topology = flat(2);
  Engine engine(topology);
  EXPECT_THROW(engine.post(0, 0, 2, 0, {}, {2 + 3 * 2 * 2}), Error);
}

// Messages sent at one time use a connection in post order, even if an earlier post has its turn
// later.
TEST(FlowEngine, SimultaneousMessagesKeepTheOrderOfPosts) {
  const Topology topology = flat(2);
  for (const bool commit : {false, true}) {
    Engine engine(topology);
    engine.post(0, 0, 2, 0, {{0, 1, 100, true}}, {1});
    engine.post(0, 1, 2, 0, {{0, 1, 100, true}}, {1});  // its turn is at 100
    if (commit)
      while (engine.engine.advance({100})) {
      }
    engine.post(0, 2, 2, 100, {{0, 1, 100, true}}, {2});
    for (int number : {0, 1}) engine.post(1, number, 2, 100, {{0, 0, 100, false}}, {1});
    const int last = engine.post(1, 2, 2, 100, {{0, 0, 100, false}}, {2});
    engine.run();
    EXPECT_EQ(engine.end(last), 300) << commit;
  }
}

// The receiver posts late: the message arrived at 100.
TEST(FlowEngine, EarlyMessagesWaitForTheirRound) {
  const Topology topology = flat(2);
  Engine engine(topology);
  engine.post(0, 0, 2, 0, {{0, 1, 100, true}});
  EXPECT_TRUE(engine.engine.advance({700}));  // the sender's part has ended
  const int receiver = engine.post(1, 0, 2, 700, {{0, 0, 100, false}});
  engine.run();
  EXPECT_EQ(engine.end(receiver), 700);
}

// A sender has ended at 100, but its exchange completes only after all members posted.
TEST(FlowEngine, AnExchangeIsCompleteWhenAllHavePosted) {
  const Topology topology = flat(2);
  Engine engine(topology);
  const int sender = engine.post(0, 0, 2, 0, {{0, 1, 100, true}});
  engine.run();
  EXPECT_EQ(engine.end(sender), -1);
  engine.post(1, 0, 2, 900, {{0, 0, 100, false}});
  EXPECT_EQ(engine.end(sender), 900);
  EXPECT_EQ(engine.engine.completion(sender)->end, Nanoseconds{100});
}

TEST(FlowEngine, CommitsEndAtTheSafeTime) {
  const Topology topology = flat(2);
  Engine engine(topology);
  const int exchange = post_message(engine, 0, 0, 1, 1000, 0);
  EXPECT_FALSE(engine.engine.advance({999}));
  EXPECT_EQ(engine.end(exchange), -1);
  EXPECT_TRUE(engine.engine.advance({1000}));
  EXPECT_EQ(engine.end(exchange), 1000);
}

// Posts a collective on all devices at the given times; returns the exchanges.
std::vector<int> post_collective(Engine& engine,
                                 const std::vector<Message>& messages,
                                 int n,
                                 int64_t number,
                                 const std::vector<int64_t>& times) {
  std::vector<int> exchanges;
  for (int device = 0; device < n; ++device) {
    std::vector<RoundStep> steps;
    for (const Message& message : messages) {
      if (message.from == device) steps.push_back({message.round, message.to, message.bytes, true});
      if (message.to == device)
        steps.push_back({message.round, message.from, message.bytes, false});
    }
    exchanges.push_back(engine.post(device, number, n, times[at(device)], steps));
  }
  return exchanges;
}

std::vector<int> first_numbers(int n) {
  std::vector<int> result(at(n));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

// 2 (n - 1) rounds of bytes / n and one latency each; without contention the estimate is exact.
TEST(FlowEngine, RingAllReduceTakesTheTextbookTime) {
  const Topology topology = flat(4, 10e-6);
  const Collective collective{CommunicationKind::kAllReduce, first_numbers(4), {4'000'000}, 4};
  const auto ring = messages(algorithms().front(), collective, group_by_node(collective, topology));
  Engine engine(topology);
  const auto exchanges = post_collective(engine, ring, 4, 0, {0, 0, 0, 0});
  engine.run();
  for (int exchange : exchanges) EXPECT_EQ(engine.end(exchange), 6 * (1'000'000 + 10'000));
}

// The estimate waits for the slowest message of each round, the engine for a device's own. Fair
// sharing of unequal messages may leave a link idle that the estimate keeps busy.
TEST(FlowEngine, IsHardlyLaterThanTheEstimate) {
  std::mt19937 random(2);
  for (int run = 0; run < 200; ++run) {
    const int n = 2 + static_cast<int>(random() % 5);
    const Topology topology = flat(n, 3e-6);
    Collective collective{
        static_cast<CommunicationKind>(random() % at(CommunicationKind::kTransfer)),
        first_numbers(n),
        {},
        1};
    for (size_t i = 0; i < num_lengths(collective.kind, at(n)); ++i)
      collective.lengths.push_back(static_cast<int64_t>(random() % 100000));
    const CheapestAlgorithm choice = cheapest(collective, topology);
    Engine engine(topology);
    const auto exchanges =
        post_collective(engine, choice.messages, n, 0, std::vector<int64_t>(at(n), 0));
    engine.run();
    for (int exchange : exchanges) {
      EXPECT_GE(engine.end(exchange), 0);
      EXPECT_LE(static_cast<double>(engine.end(exchange)),
                1.05 * static_cast<double>(choice.time.value) + 100)
          << choice.algorithm->name;
    }
  }
}

// The same posts in another order, with the clock advanced as far as possible in between, end at
// exactly equal times.
TEST(FlowEngine, TheOrderOfPostsMakesNoDifference) {
  const int n = 4;
  const Topology topology = flat(n, 7e-6);
  std::mt19937 random(9);
  for (int run = 0; run < 100; ++run) {
    struct Posted {
      int64_t time;
      int64_t number;
      std::vector<RoundStep> steps;
      Turn turn;
    };
    std::vector<std::vector<Posted>> posts(n);  // [device]
    std::vector<int64_t> clock(n, 0);
    for (int64_t number = 0; number < 6; ++number) {
      Collective collective{
          static_cast<CommunicationKind>(random() % at(CommunicationKind::kTransfer)),
          first_numbers(n),
          {},
          1};
      for (size_t i = 0; i < num_lengths(collective.kind, at(n)); ++i)
        collective.lengths.push_back(static_cast<int64_t>(random() % 30000));
      const auto sent = cheapest(collective, topology).messages;
      const Turn turn{static_cast<int>(random() % 3)};
      for (int device = 0; device < n; ++device) {
        Posted posted{clock[at(device)] += static_cast<int64_t>(random() % 2 * (random() % 20000)),
                      number,
                      {},
                      turn};
        for (const Message& message : sent) {
          if (message.from == device)
            posted.steps.push_back({message.round, message.to, message.bytes, true});
          if (message.to == device)
            posted.steps.push_back({message.round, message.from, message.bytes, false});
        }
        posts[at(device)].push_back(posted);
      }
    }
    std::vector<std::map<std::pair<int, int64_t>, int64_t>>
        ends;  // [order] (device, number) -> completion
    for (int order = 0; order < 3; ++order) {
      Engine engine(topology);
      std::vector<size_t> next(n, 0);
      std::map<std::pair<int, int64_t>, int> exchanges;
      for (size_t left = n * 6; left > 0;) {
        const size_t device = random() % n;
        if (next[device] == posts[device].size()) continue;
        const Posted& posted = posts[device][next[device]++];
        exchanges[{static_cast<int>(device), posted.number}] = engine.post(
            static_cast<int>(device), posted.number, n, posted.time, posted.steps, posted.turn);
        --left;
        int64_t safe = int64_t{1} << 60;
        for (size_t d = 0; d < n; ++d)
          if (next[d] < posts[d].size()) safe = std::min(safe, posts[d][next[d]].time);
        if (order > 0)
          while (engine.engine.advance({safe})) {
          }
      }
      engine.run();
      auto& result = ends.emplace_back();
      for (const auto& [key, exchange] : exchanges) result[key] = engine.end(exchange);
    }
    EXPECT_EQ(ends[0], ends[1]);
    EXPECT_EQ(ends[0], ends[2]);
  }
}

// Capacity is reused: there are many more exchanges than fit simultaneously.
TEST(FlowEngine, ReleasedExchangesMakeRoom) {
  const Topology topology = flat(2);
  Engine engine(topology);
  for (int64_t i = 0; i < 100000; ++i) {
    const int sender = engine.post(0, i, 2, i * 100, {{0, 1, 50, true}, {1, 1, 50, true}});
    const int receiver = engine.post(1, i, 2, i * 100, {{0, 0, 50, false}, {1, 0, 50, false}});
    engine.engine.release(sender);
    engine.run();
    ASSERT_EQ(engine.end(receiver), (i + 1) * 100);
    engine.engine.release(receiver);
  }
}

TEST(FlowEngine, ARemovedDeviceFreesItsLinks) {
  const Topology topology = flat(3);
  Engine engine(topology);
  engine.post(1, 0, 2, 0, {{0, 2, 1000, true}});
  const int other = post_message(engine, 1, 0, 2, 1000, 0);
  engine.engine.advance({500});  // both at half rate; no event before 2000
  engine.engine.remove(1);
  engine.run();
  EXPECT_EQ(engine.end(other), 1000);
}

}  // namespace
}  // namespace medley
