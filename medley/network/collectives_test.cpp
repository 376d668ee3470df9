#include "medley/network/collectives.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "medley/base/error.h"

namespace medley {
namespace {

// Contributions to one byte on one device: how often it includes each device's original.
using Cell = std::vector<int>;
using Memory = std::vector<std::vector<Cell>>;  // [device][byte]

// Delivers the messages round by round; those of a round carry values from its beginning.
Memory deliver(Memory memory, const std::vector<Message>& messages) {
  for (size_t first = 0, end; first < messages.size(); first = end) {
    const Memory before = memory;
    for (end = first; end < messages.size() && messages[end].round == messages[first].round;
         ++end) {
      const Message& message = messages[end];
      for (int64_t i = message.begin; i < message.begin + message.length; ++i) {
        const Cell& sent = before[at(message.from)][at(i)];
        Cell& cell = memory[at(message.to)][at(i)];
        for (size_t k = 0; k < cell.size(); ++k)
          cell[k] = message.reduce ? cell[k] + sent[k] : sent[k];
      }
    }
  }
  return memory;
}

struct Owner {
  size_t from = 0,
         to = 0;  // byte's owner: from for all-gather, to for reduce-scatter, both for all-to-all
};
std::vector<Owner> owners(const Collective& collective) {
  const size_t n = collective.devices.size();
  std::vector<Owner> result;
  for (size_t chunk = 0; chunk < collective.lengths.size(); ++chunk)
    for (int64_t i = 0; i < collective.lengths[chunk]; ++i)
      result.push_back(traits_of(collective.kind).is_pairwise() ? Owner{chunk / n, chunk % n}
                                                                : Owner{chunk, chunk});
  return result;
}

// Checks that every device ends with the collective's result, each contribution counted once.
void expect_kept_promise(const Collective& collective, const std::vector<Message>& messages) {
  const size_t n = collective.devices.size();
  const std::vector<Owner> owner = owners(collective);
  const bool sums = traits_of(collective.kind).sums;
  Memory start(n, std::vector<Cell>(owner.size(), Cell(n, 0)));
  for (size_t device = 0; device < n; ++device)
    for (size_t i = 0; i < owner.size(); ++i)
      start[device][i][device] = sums || owner[i].from == device;
  const Memory end = deliver(start, messages);
  for (size_t device = 0; device < n; ++device)
    for (size_t i = 0; i < owner.size(); ++i) {
      if (traits_of(collective.kind).sends && owner[i].to != device) continue;
      Cell expected(n, sums ? 1 : 0);
      if (!sums) expected[owner[i].from] = 1;
      ASSERT_EQ(end[device][i], expected) << "device " << device << " byte " << i;
    }
}

std::vector<int> iota(int n) {
  std::vector<int> result(at(n));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TEST(Collectives, EveryAlgorithmKeepsItsPromiseForAnyLengthsAndNodes) {
  std::mt19937 random(5);
  for (int run = 0; run < 400; ++run) {
    Collective collective;
    const int n = 1 + static_cast<int>(random() % 7);
    collective.devices = iota(n);
    collective.kind = static_cast<CommunicationKind>(random() % at(CommunicationKind::kTransfer));
    collective.granule = 1 + static_cast<int64_t>(random() % 3);
    for (size_t i = 0; i < num_lengths(collective.kind, at(n)); ++i)
      collective.lengths.push_back(
          random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % 6) * collective.granule);
    Grouping grouping;
    int num_nodes = 0;
    for (int i = 0; i < n; ++i) {  // by first appearance
      const int node = static_cast<int>(random() % static_cast<unsigned>(num_nodes + 1));
      num_nodes = std::max(num_nodes, node + 1);
      grouping.node.push_back(node);
    }
    for (const Algorithm& algorithm : algorithms()) {
      if (!fits(algorithm, collective.kind)) continue;
      SCOPED_TRACE(algorithm.name);
      const std::vector<Message> sent = messages(algorithm, collective, grouping);
      expect_kept_promise(collective, sent);
      for (size_t i = 0; i < sent.size(); ++i) {
        EXPECT_NE(sent[i].from, sent[i].to);
        EXPECT_GE(sent[i].bytes, sent[i].length);
        EXPECT_GT(sent[i].bytes, 0);
        EXPECT_EQ(sent[i].begin % collective.granule, 0);
        EXPECT_TRUE(i == 0 ? sent[i].round == 0 : sent[i].round - sent[i - 1].round <= 1u);
      }
    }
  }
}

// Returns n devices, one per node, on one switch.
Topology flat(int n, double bandwidth, double latency) {
  Cluster cluster;
  NodePool pool;
  pool.name = "p";
  pool.count = n;
  cluster.pools = {pool};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"p"}, bandwidth, latency, std::nullopt}};
  return Topology(cluster);
}

const Algorithm& find(std::string_view name) {
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.name == name) return algorithm;
  throw Error(Blame::kUs, "no such algorithm");
}

int64_t estimate_of(std::string_view name, const Collective& collective, const Topology& topology) {
  return estimate(messages(find(name), collective, group_by_node(collective, topology)),
                  collective,
                  topology)
      .value;
}

// The textbook: 2 (n - 1) rounds of whole / n each.
TEST(Collectives, RingAllReduceTakesTheTextbookTime) {
  const Topology topology = flat(4, 1e9, 10e-6);
  const Collective collective{CommunicationKind::kAllReduce, iota(4), {8'000'000}, 4};
  EXPECT_EQ(estimate_of("ring", collective, topology), 6 * (2'000'000 + 10'000));
  const Collective gather{CommunicationKind::kAllGather, iota(4), {1000, 3000, 1000, 1000}, 4};
  EXPECT_EQ(estimate_of("ring", gather, topology), 3 * (3'000 + 10'000));
  EXPECT_EQ(estimate_of("padded-ring", gather, topology), 3 * (3'000 + 10'000));
  const Collective scatter{CommunicationKind::kReduceScatter, iota(4), {1000, 3000, 1000, 1000}, 4};
  EXPECT_EQ(estimate_of("ring", scatter, topology), 3 * (3'000 + 10'000));
}

// One chunk dominates: a ring sends it n - 1 times in sequence, a chain of slices once.
TEST(Collectives, GroupedBroadcastWinsWhenOneChunkIsNearlyEverything) {
  const Topology topology = flat(8, 1e9, 1e-6);
  Collective collective{CommunicationKind::kAllGather, iota(8), std::vector<int64_t>(8, 10'000), 1};
  collective.lengths[0] = 80'000'000;
  const int64_t chain = estimate_of("grouped-broadcast", collective, topology);
  EXPECT_GT(chain, 80'000'000);      // every device has to receive it
  EXPECT_LT(chain, 2 * 80'000'000);  // 8 slices down 7 hops
  EXPECT_GT(estimate_of("ring", collective, topology), 7 * 80'000'000);
  EXPECT_EQ(cheapest(collective, topology).algorithm->name, "grouped-broadcast");
}

TEST(Collectives, TheCheapestDependsOnTheSize) {
  const Topology topology = flat(8, 1e9, 50e-6);
  EXPECT_EQ(cheapest({CommunicationKind::kAllReduce, iota(8), {64}, 4}, topology).algorithm->name,
            "direct");
  const CheapestAlgorithm large =
      cheapest({CommunicationKind::kAllReduce, iota(8), {1 << 30}, 4}, topology);
  EXPECT_LE(large.time.value,
            estimate_of("ring", {CommunicationKind::kAllReduce, iota(8), {1 << 30}, 4}, topology));
}

// Two nodes of four: a flat ring in an unlucky order crosses the switch with every message. The
// hierarchy sends half the buffer each way.
TEST(Collectives, TheHierarchyKeepsBytesInsideNodes) {
  Cluster cluster;
  NodePool pool;
  pool.name = "p";
  pool.count = 2;
  pool.devices_per_node = 4;
  cluster.pools = {pool};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"fabric", true, {}, 100e9, 1e-6, std::nullopt},
                      {"lan", false, {"p"}, 1e9, 5e-6, std::nullopt}};
  const Topology topology(cluster);
  const Collective collective{
      CommunicationKind::kAllReduce, {0, 4, 1, 5, 2, 6, 3, 7}, {80'000'000}, 4};
  const CheapestAlgorithm choice = cheapest(collective, topology);
  EXPECT_EQ(choice.algorithm->name, "hierarchical");
  // Across: one round each way of all four chunks of a node, 40 MB at 1 GB/s. Inside: twice 3
  // rounds of 20 MB at 100 GB/s.
  EXPECT_EQ(choice.time.value, 2 * (40'000'000 + 5'000) + 6 * (200'000 + 1'000));
  EXPECT_GT(estimate_of("ring", collective, topology), 5 * choice.time.value / 2);
}

TEST(Collectives, OneDeviceSendsNothing) {
  EXPECT_TRUE(
      messages(find("ring"), {CommunicationKind::kAllReduce, {0}, {100}, 4}, {{0}}).empty());
  EXPECT_EQ(cheapest({CommunicationKind::kAllGather, {2}, {100}, 4}, flat(4, 1e9, 0)).time,
            Nanoseconds{0});
}

}  // namespace
}  // namespace medley
