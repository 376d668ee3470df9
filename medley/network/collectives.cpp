#include "medley/network/collectives.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/network/estimate.h"

namespace medley {
namespace {

using Lengths = std::vector<int64_t>;

// Returns the start of each chunk, then the end of the whole.
Lengths starts(const Lengths& lengths) {
  Lengths result(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), result.begin() + 1);
  return result;
}

// ---- all-gather ----

// Round r: every device forwards the chunk of round r - 1, its own first.
//
//   0 --c0--> 1 --c1--> 2 --c2--> 0        round 0
//   0 --c2--> 1 --c0--> 2 --c1--> 0        round 1
std::vector<Message> ring(const Lengths& lengths, int n, int64_t, const Grouping&) {
  const Lengths begin = starts(lengths);
  std::vector<Message> result;
  for (int round = 0; round < n - 1; ++round)
    for (int from = 0; from < n; ++from) {
      const size_t chunk = at((from - round + n) % n);
      result.push_back({round, from, (from + 1) % n, begin[chunk], lengths[chunk], lengths[chunk]});
    }
  return result;
}

// Libraries without unequal chunks pad each chunk to the longest.
std::vector<Message> padded_ring(const Lengths& lengths,
                                 int n,
                                 int64_t granule,
                                 const Grouping& grouping) {
  std::vector<Message> result = ring(lengths, n, granule, grouping);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (Message& message : result) message.bytes = longest;
  return result;
}

// One round: every device sends its chunk to all others. One latency, but no forwarding.
std::vector<Message> direct(const Lengths& lengths, int n, int64_t, const Grouping&) {
  const Lengths begin = starts(lengths);
  std::vector<Message> result;
  for (int from = 0; from < n; ++from)
    for (int step = 1; step < n; ++step)
      result.push_back(
          {0, from, (from + step) % n, begin[at(from)], lengths[at(from)], lengths[at(from)]});
  return result;
}

// One broadcast per chunk, all concurrent, each along the ring in slices of about the average
// chunk. A long chunk is spread over many rounds that also carry short ones. The time is the sum of
// the chunks instead of the longest times their number.
std::vector<Message> grouped_broadcast(const Lengths& lengths,
                                       int n,
                                       int64_t granule,
                                       const Grouping&) {
  struct Slice {
    int64_t begin, length;
    int origin;
  };
  const Lengths begin = starts(lengths);
  const int64_t average = (begin.back() / granule + n - 1) / n * granule;
  std::vector<std::deque<Slice>> to_pass(at(n));  // slices that its successor lacks
  for (int i = 0; i < n; ++i)
    for (int64_t done = 0; done < lengths[at(i)]; done += average)
      to_pass[at(i)].push_back({begin[at(i)] + done, std::min(average, lengths[at(i)] - done), i});
  std::vector<Message> result;
  for (int round = 0;; ++round) {
    const size_t before = result.size();
    std::vector<std::pair<int, Slice>> received;
    for (int from = 0; from < n; ++from) {
      if (to_pass[at(from)].empty()) continue;
      const Slice slice = to_pass[at(from)].front();
      to_pass[at(from)].pop_front();
      const int to = (from + 1) % n;
      result.push_back({round, from, to, slice.begin, slice.length, slice.length});
      if ((to + 1) % n != slice.origin) received.emplace_back(to, slice);
    }
    for (const auto& [device, slice] : received) to_pass[at(device)].push_back(slice);
    if (result.size() == before) return result;
  }
}

// Across nodes first: chunks travel round a ring of nodes, so that each enters each node once, at
// the device with its owner's position. Then each node shares its chunks round its own ring. In
// reverse, for sums, inside nodes come first.
std::vector<Message> hierarchical(const Lengths& lengths,
                                  int n,
                                  int64_t,
                                  const Grouping& grouping) {
  const Lengths begin = starts(lengths);
  std::vector<std::vector<int>> members(
      at(1 + *std::max_element(grouping.node.begin(), grouping.node.end())));
  std::vector<int> place(at(n));  // within the node
  for (int i = 0; i < n; ++i) {
    auto& node = members[at(grouping.node[at(i)])];
    place[at(i)] = static_cast<int>(node.size());
    node.push_back(i);
  }
  const int num_nodes = static_cast<int>(members.size());
  const auto holder = [&](int node, int owner) {
    return grouping.node[at(owner)] == node
               ? owner
               : members[at(node)][at(place[at(owner)]) % members[at(node)].size()];
  };
  const auto carry = [&](int round, int from, int to, int chunk) {
    return Message{round, from, to, begin[at(chunk)], lengths[at(chunk)], lengths[at(chunk)]};
  };
  std::vector<Message> result;
  for (int round = 0; round < num_nodes - 1; ++round)
    for (int node = 0; node < num_nodes; ++node)
      for (int owner : members[at((node - round + num_nodes) % num_nodes)])
        result.push_back(
            carry(round, holder(node, owner), holder((node + 1) % num_nodes, owner), owner));
  for (int node = 0; node < num_nodes; ++node) {
    const auto& ring_of_node = members[at(node)];
    const int size = static_cast<int>(ring_of_node.size());
    for (int step = 0; step < size - 1; ++step)
      for (int i = 0; i < size; ++i) {
        const int source = ring_of_node[at((i - step + size) % size)];
        for (int owner = 0; owner < n; ++owner)
          if (holder(node, owner) == source)
            result.push_back(carry(num_nodes - 1 + step,
                                   ring_of_node[at(i)],
                                   ring_of_node[at((i + 1) % size)],
                                   owner));
      }
  }
  return result;
}

// ---- all-to-all ----

// Round r: every device sends to the device r + 1 places on.
std::vector<Message> pairwise(const Lengths& lengths, int n, int64_t, const Grouping&) {
  const Lengths begin = starts(lengths);
  std::vector<Message> result;
  for (int round = 0; round < n - 1; ++round)
    for (int from = 0; from < n; ++from) {
      const int to = (from + round + 1) % n;
      const size_t block = at(from * n + to);
      result.push_back({round, from, to, begin[block], lengths[block], lengths[block]});
    }
  return result;
}

std::vector<Message> padded_pairwise(const Lengths& lengths,
                                     int n,
                                     int64_t granule,
                                     const Grouping& grouping) {
  std::vector<Message> result = pairwise(lengths, n, granule, grouping);
  int64_t longest = 0;
  for (const Message& message : result) longest = std::max(longest, message.length);
  for (Message& message : result) message.bytes = longest;
  return result;
}

// One round: no link with bytes to carry is idle, for any lengths. Every all-to-all carries each
// block once out of a node and into another, so none has a lower estimate. It is therefore always
// chosen, even on a device that knows only its own lengths. Gloo also posts all sends and receives
// at once.
std::vector<Message> all_at_once(const Lengths& lengths,
                                 int n,
                                 int64_t granule,
                                 const Grouping& grouping) {
  std::vector<Message> result = pairwise(lengths, n, granule, grouping);
  for (Message& message : result) message.round = 0;
  return result;
}

// Inside the node first: a block for another node goes to the neighbour with the receiver's
// position, then across, node by node. Two nodes have as many connections as a node has devices,
// instead of its square.
std::vector<Message> hierarchical_all_to_all(const Lengths& lengths,
                                             int n,
                                             int64_t,
                                             const Grouping& grouping) {
  const Lengths begin = starts(lengths);
  const int num_nodes = 1 + *std::max_element(grouping.node.begin(), grouping.node.end());
  std::vector<std::vector<int>> members(at(num_nodes));
  std::vector<int> place(at(n));
  size_t widest = 0;
  for (int i = 0; i < n; ++i) {
    auto& node = members[at(grouping.node[at(i)])];
    place[at(i)] = static_cast<int>(node.size());
    node.push_back(i);
    widest = std::max(widest, node.size());
  }
  std::vector<Message> result;
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      const int source = grouping.node[at(from)], target = grouping.node[at(to)];
      const auto& node = members[at(source)];
      const int size = static_cast<int>(node.size());
      const int sync = source == target ? to : node[at(place[at(to)] % size)];
      const size_t block = at(from * n + to);
      Message message{0, from, sync, begin[block], lengths[block], lengths[block]};
      if (sync != from) {
        message.round = (place[at(sync)] - place[at(from)] + size) % size - 1;
        result.push_back(message);
      }
      if (source == target) continue;
      message.from = sync;
      message.to = to;
      message.round = static_cast<int>(widest) - 1 + (target - source + num_nodes) % num_nodes - 1;
      result.push_back(message);
    }
  return result;
}

// ---- assembly ----

int num_rounds(const std::vector<Message>& messages) {
  int rounds = 0;
  for (const Message& message : messages) rounds = std::max(rounds, message.round + 1);
  return rounds;
}

std::vector<Message> backwards(std::vector<Message> messages) {
  const int rounds = num_rounds(messages);
  for (Message& message : messages) {
    message.round = rounds - 1 - message.round;
    std::swap(message.from, message.to);
    message.reduce = true;
  }
  return messages;
}

// Drops empty messages, sorts by round and closes gaps between rounds.
std::vector<Message> tidy(std::vector<Message> messages) {
  std::erase_if(messages, [](const Message& message) { return message.bytes == 0; });
  std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return a.round < b.round;
  });
  int last = -1, rounds = -1;
  for (Message& message : messages) {
    if (message.round != last) ++rounds;
    last = message.round;
    message.round = rounds;
  }
  return messages;
}

void check(const Collective& collective) {
  MEDLEY_CHECK(!collective.devices.empty());
  MEDLEY_CHECK(collective.granule > 0);
  MEDLEY_CHECK_EQ(collective.lengths.size(),
                  num_lengths(collective.kind, collective.devices.size()));
  for (int64_t length : collective.lengths)
    MEDLEY_CHECK(length >= 0 && length % collective.granule == 0);
}

}  // namespace

bool fits(const Algorithm& algorithm, CommunicationKind kind) {
  return algorithm.for_all_to_all == traits_of(kind).is_pairwise();
}

std::vector<Collective> in_turn(const Collective& collective) {
  if (collective.kind != CommunicationKind::kGradientSync) return {collective};
  const auto half = static_cast<std::ptrdiff_t>(collective.lengths.size() / 2);
  std::vector<Collective> both(2, collective);
  for (Collective& each : both) each.kind = CommunicationKind::kAllToAll;
  both[0].lengths.erase(both[0].lengths.begin() + half, both[0].lengths.end());
  both[1].lengths.erase(both[1].lengths.begin(), both[1].lengths.begin() + half);
  return both;
}

std::vector<int64_t> even_chunks(int64_t whole, int n, int64_t granule) {
  const int64_t elements = whole / granule;
  Lengths result;
  for (int i = 0; i < n; ++i)
    result.push_back(((i + 1) * elements / n - i * elements / n) * granule);
  return result;
}

std::vector<int64_t> gathered(const Collective& collective) {
  if (!traits_of(collective.kind).is_whole()) return collective.lengths;
  const int n = static_cast<int>(collective.devices.size());
  return even_chunks(collective.lengths[0], n, collective.granule);
}

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> kAlgorithms{
      {"ring", "chunks of their own length round a ring", false, false, ring},
      {"padded-ring", "chunks as long as the longest round a ring", false, false, padded_ring},
      {"direct", "everybody to everybody in one round", false, false, direct},
      {"grouped-broadcast",
       "a broadcast per chunk, in slices, all at once",
       false,
       false,
       grouped_broadcast},
      {"hierarchical", "a ring of nodes and a ring inside each node", false, true, hierarchical},
      {"all-at-once", "everybody to everybody in one round", true, false, all_at_once},
      {"pairwise", "one partner per round", true, false, pairwise},
      {"padded-pairwise",
       "one partner per round, blocks as long as the longest",
       true,
       false,
       padded_pairwise},
      {"hierarchical-all-to-all",
       "inside the node first, then across",
       true,
       true,
       hierarchical_all_to_all},
  };
  return kAlgorithms;
}

Grouping group_by_node(const Collective& collective, const Topology& topology) {
  std::map<int, int> numbers;
  Grouping grouping;
  for (int device : collective.devices)
    grouping.node.push_back(
        numbers.emplace(topology.node(device), static_cast<int>(numbers.size())).first->second);
  return grouping;
}

std::vector<Message> messages(const Algorithm& algorithm,
                              const Collective& collective,
                              const Grouping& grouping) {
  check(collective);
  MEDLEY_CHECK(fits(algorithm, collective.kind));
  const int n = static_cast<int>(collective.devices.size());
  if (n == 1) return {};
  if (collective.kind == CommunicationKind::kGradientSync) {
    std::vector<Message> result;
    for (const Collective& each : in_turn(collective)) {
      const int before = num_rounds(result);
      for (Message message : messages(algorithm, each, grouping)) {
        message.round += before;
        result.push_back(message);
      }
    }
    return result;
  }
  const CommunicationTraits& traits = traits_of(collective.kind);
  std::vector<Message> gather =
      algorithm.messages(gathered(collective), n, collective.granule, grouping);
  std::vector<Message> result;
  if (traits.sums) result = backwards(gather);
  if (traits.gathers()) {
    const int rounds = num_rounds(result);
    for (Message& message : gather) message.round += rounds;
    result.insert(result.end(), gather.begin(), gather.end());
  }
  return tidy(std::move(result));
}

std::vector<std::vector<RoundStep>> steps_of_members(std::span<const Message> messages,
                                                     const std::vector<int>& devices) {
  std::vector<std::vector<RoundStep>> steps(devices.size());
  for (const Message& message : messages) {
    const size_t from = at(message.from), to = at(message.to);
    steps[from].push_back({message.round, devices[to], message.bytes, true});
    steps[to].push_back({message.round, devices[from], message.bytes, false});
  }
  return steps;
}

Nanoseconds estimate(std::span<const Message> messages,
                     const Collective& collective,
                     const Topology& topology) {
  Nanoseconds total{0};
  std::vector<double> load(topology.links().size());  // bytes
  for (size_t first = 0, end; first < messages.size(); first = end) {
    const auto route = [&](const Message& message) {
      return topology.route(collective.devices[at(message.from)],
                            collective.devices[at(message.to)]);
    };
    for (end = first; end < messages.size() && messages[end].round == messages[first].round; ++end)
      for (const Route along = route(messages[end]); int link : along.span())
        load[at(link)] += static_cast<double>(messages[end].bytes);
    Nanoseconds slowest{0};
    for (size_t i = first; i < end; ++i) {
      const Route along = route(messages[i]);
      double seconds = 0;
      for (int link : along.span())
        seconds = std::max(seconds, load[at(link)] / topology.links()[at(link)].bandwidth.value);
      slowest = std::max(slowest, along.latency + to_nanoseconds({seconds}));
    }
    for (size_t i = first; i < end; ++i)
      for (const Route along = route(messages[i]); int link : along.span()) load[at(link)] = 0;
    total += slowest;
  }
  return total;
}

CheapestAlgorithm cheapest(const Collective& collective, const Topology& topology) {
  check(collective);
  const CheapestEstimate best = cheapest_estimate(collective, topology);
  return {best.algorithm,
          best.time,
          messages(*best.algorithm, collective, group_by_node(collective, topology))};
}

}  // namespace medley
