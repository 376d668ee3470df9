#include "medley/network/estimate.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "medley/base/at.h"

namespace medley {
namespace {

using Lengths = std::vector<int64_t>;

// Link loads of one round; reading the round's time resets them.
class Round {
 public:
  Round(const Topology& topology, std::vector<double>* traffic)
      : topology_(topology),
        traffic_(traffic),
        load_(topology.links().size()),
        latency_(load_.size()) {}

  void add(const Route& route, double bytes) {
    if (bytes <= 0) return;
    for (int link : route.span()) add(link, route.latency, bytes);
  }
  void add(int link, Nanoseconds latency, double bytes) {
    if (bytes <= 0) return;
    if (load_[at(link)] == 0) used_.push_back(link);
    load_[at(link)] += bytes;
    latency_[at(link)] = latency;
  }
  Nanoseconds finish() {
    Nanoseconds slowest{0};
    for (int link : used_) {
      const double seconds = load_[at(link)] / topology_.links()[at(link)].bandwidth.value;
      slowest = std::max(slowest, latency_[at(link)] + to_nanoseconds({seconds}));
      if (traffic_) (*traffic_)[at(link)] += load_[at(link)];
      load_[at(link)] = 0;
    }
    used_.clear();
    return slowest;
  }

 private:
  const Topology& topology_;
  std::vector<double>* traffic_;  // sum over all rounds, or null
  std::vector<double> load_;      // bytes
  std::vector<Nanoseconds> latency_;
  std::vector<int> used_;
};

// The devices of a collective by node.
struct Group {
  Group(const Collective& collective, const Topology& on)
      : topology(on), devices(collective.devices), grouping(group_by_node(collective, on)) {
    members.resize(at(1 + *std::max_element(grouping.node.begin(), grouping.node.end())));
    for (size_t i = 0; i < devices.size(); ++i) members[at(grouping.node[i])].push_back(i);
  }
  int pool(int device) const { return topology.cluster().devices[at(device)].pool; }

  const Topology& topology;
  const std::vector<int>& devices;
  Grouping grouping;
  // Returns whether node k has devices [k m, (k + 1) m) of the group, for one m, and all
  // connections inside and between nodes are equal. Rotating the group by a node then changes
  // nothing, so the first node's links suffice.
  bool is_symmetric() const {
    const size_t size = members[0].size();
    std::map<int, std::vector<int>> of_pool;  // first devices of up to two nodes
    for (size_t node = 0; node < members.size(); ++node) {
      if (members[node].size() != size || members[node][0] != node * size ||
          members[node].back() != (node + 1) * size - 1)
        return false;
      auto& nodes = of_pool[pool(devices[node * size])];
      if (nodes.size() < 2) nodes.push_back(static_cast<int>(node * size));
    }
    std::set<int> inside, between;  // networks
    const auto network = [&](int from, int to) {
      const Path path = topology.path(devices[at(from)], devices[at(to)]);
      return path.links.size() == 2 ? path.network : -1;
    };
    for (const auto& [a, from] : of_pool) {
      if (size > 1) inside.insert(network(from[0], from[0] + 1));
      for (const auto& [b, to] : of_pool) {
        if (a != b) between.insert(network(from[0], to[0]));
        if (a == b && to.size() > 1) between.insert(network(to[0], to[1]));
      }
    }
    return inside.size() <= 1 && between.size() <= 1 && !inside.contains(-1) &&
           !between.contains(-1);
  }

  std::vector<std::vector<size_t>> members;  // [node]
  std::vector<double>* traffic = nullptr;    // [link], if requested
};

// Each of `devices` forwards, in round r, the chunk of its r-th predecessor.
class Ring {
 public:
  Ring(const std::vector<int>& devices, const Topology& topology) : topology_(topology) {
    const size_t n = devices.size();
    std::vector<std::vector<size_t>> users(topology.links().size());
    std::vector<Nanoseconds> latency(users.size());
    for (size_t i = 0; i < n; ++i) {
      const Route& route = routes_.emplace_back(topology.route(devices[i], devices[(i + 1) % n]));
      for (int link : route.span()) {
        users[at(link)].push_back(i);
        latency[at(link)] = route.latency;
      }
    }
    for (size_t link = 0; link < users.size(); ++link)
      if (!users[link].empty()) add(static_cast<int>(link), latency[link], std::move(users[link]));
    for (Class& each : classes_) {
      std::sort(each.alone.begin(), each.alone.end());
      each.alone.erase(std::unique(each.alone.begin(), each.alone.end()), each.alone.end());
    }
  }

  Nanoseconds gather(const Lengths& lengths, std::vector<double>* traffic) const {
    const size_t n = lengths.size();
    if (traffic) add_traffic(lengths, *traffic);
    const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
    if (*least == *most) return (static_cast<int64_t>(n) - 1) * round(lengths, 0, *most);
    Lengths twice = lengths;
    twice.insert(twice.end(), lengths.begin(), lengths.end());
    Nanoseconds total{0};
    for (size_t r = 0; r + 1 < n; ++r) total += round(twice, n - r, *most);
    return total;
  }

  // Times one broadcast per chunk, all concurrent, in slices of about the average chunk. Per round
  // a device forwards a slice, its own first, except to the slice's origin.
  Nanoseconds broadcast(const Lengths& lengths,
                        int64_t granule,
                        std::vector<double>* traffic) const {
    const size_t n = lengths.size();
    if (traffic) add_traffic(lengths, *traffic);
    const Slices slices = cut(lengths, granule);
    const size_t room = slices.lengths.size();
    std::vector<uint32_t> queues(n * room);       // slices of each in sending order
    std::vector<size_t> known(n, 0), next(n, 0);  // per queue: its end, next to send
    for (size_t s = 0; s < room; ++s) {
      const size_t i = slices.origins[s];
      queues[i * room + known[i]++] = static_cast<uint32_t>(s);
    }
    Nanoseconds total{0};
    Lengths sent(n);
    for (;;) {
      int64_t longest = 0;
      for (size_t i = 0; i < n; ++i) {
        sent[i] = next[i] < known[i] ? slices.lengths[queues[i * room + next[i]]] : 0;
        longest = std::max(longest, sent[i]);
      }
      if (longest == 0) return total;
      total += round(sent, 0, longest);
      for (size_t i = 0; i < n; ++i) {
        if (sent[i] == 0) continue;
        const uint32_t slice = queues[i * room + next[i]++];
        const size_t to = i + 1 < n ? i + 1 : 0, after = to + 1 < n ? to + 1 : 0;
        if (after != slices.origins[slice]) queues[to * room + known[to]++] = slice;
      }
    }
  }

  // Returns a fast lower bound for a broadcast: a connection carries every slice but its receiver's
  // own, one per round.
  Nanoseconds broadcast_at_least(const Lengths& lengths, int64_t granule) const {
    const Slices slices = cut(lengths, granule);
    std::vector<int64_t> own(lengths.size(), 0);
    for (size_t origin : slices.origins) ++own[origin];
    const int64_t rounds =
        static_cast<int64_t>(slices.lengths.size()) - *std::max_element(own.begin(), own.end());
    const int64_t bytes = std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) -
                          *std::max_element(lengths.begin(), lengths.end());
    const Nanoseconds rounding{1};
    Nanoseconds most{0};
    for (const Class& each : classes_)
      most = std::max(most,
                      rounds * (each.latency - rounding) +
                          to_nanoseconds({static_cast<double>(bytes) / each.bandwidth}));
    return most;
  }

 private:
  // Links of equal latency and bandwidth: unshared ones, and others.
  struct Class {
    Nanoseconds latency;
    double bandwidth;
    std::vector<size_t> alone;  // connections, by their sender's index in the ring
    std::vector<std::vector<size_t>> shared;
  };

  struct Slices {
    Lengths lengths;
    std::vector<size_t> origins;
  };
  static Slices cut(const Lengths& lengths, int64_t granule) {
    const auto n = static_cast<int64_t>(lengths.size());
    const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t average = (sum / granule + n - 1) / n * granule;
    Slices slices;
    for (size_t i = 0; i < lengths.size(); ++i)
      for (int64_t done = 0; done < lengths[i]; done += average) {
        slices.lengths.push_back(std::min(average, lengths[i] - done));
        slices.origins.push_back(i);
      }
    return slices;
  }

  // A connection carries every chunk but its receiver's own.
  void add_traffic(const Lengths& lengths, std::vector<double>& traffic) const {
    const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    for (size_t i = 0; i < lengths.size(); ++i)
      for (int link : routes_[i].span())
        traffic[at(link)] += static_cast<double>(sum - lengths[(i + 1) % lengths.size()]);
  }

  void add(int link, Nanoseconds latency, std::vector<size_t> users) {
    const double bandwidth = topology_.links()[at(link)].bandwidth.value;
    auto place = std::find_if(classes_.begin(), classes_.end(), [&](const Class& each) {
      return each.latency == latency && each.bandwidth == bandwidth;
    });
    if (place == classes_.end())
      place = classes_.insert(classes_.end(), {latency, bandwidth, {}, {}});
    if (users.size() == 1)
      place->alone.push_back(users[0]);
    else
      place->shared.push_back(std::move(users));
  }

  // Returns the time of a round in which connection i sends twice[i + shift], at most `longest`.
  Nanoseconds round(const Lengths& twice, size_t shift, int64_t longest) const {
    Nanoseconds slowest{0};
    for (const Class& each : classes_) {
      int64_t most = each.alone.size() == routes_.size() ? longest : 0;
      for (size_t k = 0; k < each.alone.size() && most < longest; ++k)
        most = std::max(most, twice[each.alone[k] + shift]);
      for (const auto& users : each.shared) {
        int64_t sum = 0;
        for (size_t i : users) sum += twice[i + shift];
        most = std::max(most, sum);
      }
      if (most > 0)
        slowest = std::max(
            slowest, each.latency + to_nanoseconds({static_cast<double>(most) / each.bandwidth}));
    }
    return slowest;
  }

  const Topology& topology_;
  std::vector<Route> routes_;  // from each device to the next
  std::vector<Class> classes_;
};

Nanoseconds ring(const Lengths& lengths, int64_t, const Group& group) {
  return Ring(group.devices, group.topology).gather(lengths, group.traffic);
}

Nanoseconds padded_ring(const Lengths& lengths, int64_t granule, const Group& group) {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return ring(Lengths(lengths.size(), longest), granule, group);
}

Nanoseconds grouped_broadcast(const Lengths& lengths, int64_t granule, const Group& group) {
  return Ring(group.devices, group.topology).broadcast(lengths, granule, group.traffic);
}

// Adds traffic within a node, by device; between nodes it is added by pool.
void add_inside(const Group& group, size_t node, const Lengths& lengths, Round& round) {
  const auto& members = group.members[node];
  if (members.size() < 2) return;
  const auto others = static_cast<int64_t>(members.size()) - 1;
  int64_t sum = 0;
  for (size_t i : members) sum += lengths[i];
  for (size_t i : members) {
    const size_t other = i == members[0] ? members[1] : members[0];
    const Route out = group.topology.route(group.devices[i], group.devices[other]);
    round.add(out.span().front(), out.latency, static_cast<double>(lengths[i] * others));
    const Route in = group.topology.route(group.devices[other], group.devices[i]);
    round.add(in.span().back(), in.latency, static_cast<double>(sum - lengths[i]));
  }
}

Nanoseconds direct(const Lengths& lengths, int64_t, const Group& group) {
  struct Part {
    int64_t count = 0, bytes = 0;
  };
  const size_t num_pools = group.topology.cluster().pools.size();
  std::vector<Part> nodes(group.members.size()), pools(num_pools);
  std::vector<std::vector<int>> of_pool(num_pools);  // first devices of nodes
  Round round(group.topology, group.traffic);
  for (size_t node = 0; node < nodes.size(); ++node) {
    for (size_t i : group.members[node]) {
      ++nodes[node].count;
      nodes[node].bytes += lengths[i];
    }
    const int first = group.devices[group.members[node][0]];
    Part& pool = pools[at(group.pool(first))];
    pool.count += nodes[node].count;
    pool.bytes += nodes[node].bytes;
    of_pool[at(group.pool(first))].push_back(first);
    add_inside(group, node, lengths, round);
  }
  for (size_t node = 0; node < nodes.size(); ++node) {
    const int first = group.devices[group.members[node][0]];
    const auto mine = at(group.pool(first));
    for (size_t pool = 0; pool < num_pools; ++pool) {
      const bool same = pool == mine;
      if (of_pool[pool].size() < (same ? 2u : 1u)) continue;
      const int other = of_pool[pool][0] == first ? of_pool[pool][1] : of_pool[pool][0];
      const Route out = group.topology.route(first, other), in = group.topology.route(other, first);
      const int64_t receivers = pools[pool].count - (same ? nodes[node].count : 0);
      const int64_t others = pools[pool].bytes - (same ? nodes[node].bytes : 0);
      round.add(
          out.span().front(), out.latency, static_cast<double>(nodes[node].bytes * receivers));
      round.add(in.span().back(), in.latency, static_cast<double>(others * nodes[node].count));
    }
  }
  for (size_t a = 0; a < num_pools; ++a)
    for (size_t b = 0; b < num_pools; ++b) {
      if (a == b || of_pool[a].empty() || of_pool[b].empty()) continue;
      const Route route = group.topology.route(of_pool[a][0], of_pool[b][0]);
      if (route.num_links == 3)
        round.add(
            route.links[1], route.latency, static_cast<double>(pools[a].bytes * pools[b].count));
    }
  return round.finish();
}

Nanoseconds hierarchical(const Lengths& lengths, int64_t, const Group& group) {
  std::vector<int> first;
  Lengths of_node;
  size_t widest = 0;
  for (const auto& members : group.members) {
    first.push_back(group.devices[members[0]]);
    of_node.push_back(0);
    for (size_t i : members) of_node.back() += lengths[i];
    widest = std::max(widest, members.size());
  }
  Nanoseconds total =
      first.size() > 1 ? Ring(first, group.topology).gather(of_node, group.traffic) : Nanoseconds{};
  // Chunk of the k-th device of a node of `size` after that.
  std::vector<Lengths> holds(widest + 1);
  for (const auto& members : group.members) {
    Lengths& held = holds[members.size()];
    if (!held.empty()) continue;
    held.assign(members.size(), 0);
    for (const auto& from : group.members)
      for (size_t place = 0; place < from.size(); ++place)
        held[place % members.size()] += lengths[from[place]];
  }
  Round round(group.topology, group.traffic);
  for (size_t step = 0; step + 1 < widest; ++step) {
    for (const auto& members : group.members) {
      const size_t size = members.size();
      if (step + 1 >= size) continue;
      for (size_t i = 0; i < size; ++i)
        round.add(
            group.topology.route(group.devices[members[i]], group.devices[members[(i + 1) % size]]),
            static_cast<double>(holds[size][(i + size - step) % size]));
    }
    total += round.finish();
  }
  return total;
}

// Times equal blocks between identical nodes by the traffic of the first node.
Nanoseconds symmetric_rounds(int64_t block, const Group& group, bool at_once) {
  const size_t n = group.devices.size(), inside = group.members[0].size();
  Round round(group.topology, nullptr);
  const auto add = [&](size_t from, size_t to) {
    round.add(group.topology.route(group.devices[from], group.devices[to]),
              static_cast<double>(block));
  };
  Nanoseconds total{0};
  for (size_t step = 1; step < n; ++step) {
    for (size_t i = 0; i < inside; ++i) {
      add(i, (i + step) % n);
      const size_t from = (i + n - step) % n;
      if (from >= inside) add(from, i);
    }
    if (!at_once) total += round.finish();
  }
  return total + round.finish();
}

// A device sends nothing to itself.
bool are_equal(const Lengths& blocks, size_t n) {
  for (size_t from = 0; from < n; ++from)
    for (size_t to = 0; to < n; ++to)
      if (from != to && blocks[from * n + to] != blocks[1]) return false;
  return true;
}

Nanoseconds pairwise_rounds(const Lengths& lengths, const Group& group, bool at_once) {
  const size_t n = group.devices.size();
  if (!group.traffic && are_equal(lengths, n) && group.is_symmetric())
    return symmetric_rounds(lengths[1], group, at_once);
  Round round(group.topology, group.traffic);
  Nanoseconds total{0};
  for (size_t step = 1; step < n; ++step) {
    for (size_t from = 0; from < n; ++from) {
      const size_t to = (from + step) % n;
      round.add(group.topology.route(group.devices[from], group.devices[to]),
                static_cast<double>(lengths[from * n + to]));
    }
    if (!at_once) total += round.finish();
  }
  return total + round.finish();
}

Nanoseconds pairwise(const Lengths& lengths, int64_t, const Group& group) {
  return pairwise_rounds(lengths, group, false);
}
Nanoseconds all_at_once(const Lengths& lengths, int64_t, const Group& group) {
  return pairwise_rounds(lengths, group, true);
}
Nanoseconds padded_pairwise(const Lengths& lengths, int64_t, const Group& group) {
  const size_t n = group.devices.size();
  int64_t longest = 0;  // without own blocks
  for (size_t i = 0; i < lengths.size(); ++i)
    if (i / n != i % n) longest = std::max(longest, lengths[i]);
  return pairwise_rounds(Lengths(lengths.size(), longest), group, false);
}

// Serves all-gather and all-to-all.
struct Equation {
  std::string_view name;
  Nanoseconds (*time)(const Lengths& lengths, int64_t granule, const Group& group);
};
constexpr Equation kEquations[] = {
    {"ring", ring},
    {"padded-ring", padded_ring},
    {"direct", direct},
    {"grouped-broadcast", grouped_broadcast},
    {"hierarchical", hierarchical},
    {"pairwise", pairwise},
    {"padded-pairwise", padded_pairwise},
    {"all-at-once", all_at_once},
};

// Returns how often an equation counts: an all-reduce is an all-gather in both directions.
int64_t times_of(CommunicationKind kind) {
  return int64_t{traits_of(kind).gathers()} + int64_t{traits_of(kind).sums};
}

Nanoseconds estimate(const Algorithm& algorithm,
                     const Collective& collective,
                     const Lengths& lengths,
                     const Group& group) {
  if (collective.kind == CommunicationKind::kGradientSync) {
    Nanoseconds both;
    for (const Collective& each : in_turn(collective))
      both += estimate(algorithm, each, each.lengths, group);
    return both;
  }
  for (const Equation& equation : kEquations)
    if (equation.name == algorithm.name)
      return times_of(collective.kind) * equation.time(lengths, collective.granule, group);
  return estimate(messages(algorithm, collective, group.grouping), collective, group.topology);
}

// Broadcasts of one slice each equal the ring; those with more slices have more rounds.
bool is_beaten(const Algorithm& algorithm,
               const Lengths& lengths,
               const Collective& collective,
               const Group& group,
               Nanoseconds best) {
  if (algorithm.name != "grouped-broadcast") return false;
  const auto n = static_cast<int64_t>(lengths.size());
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t granule = collective.granule;
  if (*std::max_element(lengths.begin(), lengths.end()) <= (sum / granule + n - 1) / n * granule)
    return true;
  return times_of(collective.kind) *
             Ring(group.devices, group.topology).broadcast_at_least(lengths, granule) >=
         best;
}

}  // namespace

Nanoseconds estimate(const Algorithm& algorithm,
                     const Collective& collective,
                     const Topology& topology) {
  if (collective.devices.size() < 2) return {};
  return estimate(algorithm, collective, gathered(collective), Group(collective, topology));
}

std::vector<int64_t> traffic(const Algorithm& algorithm,
                             const Collective& collective,
                             const Topology& topology) {
  std::vector<int64_t> result(topology.links().size());
  if (collective.devices.size() < 2) return result;
  if (collective.kind == CommunicationKind::kGradientSync) {
    for (const Collective& each : in_turn(collective))
      std::ranges::transform(
          traffic(algorithm, each, topology), result, result.begin(), std::plus{});
    return result;
  }
  Group group(collective, topology);
  std::vector<double> once(result.size());
  group.traffic = &once;
  for (const Equation& equation : kEquations)
    if (equation.name == algorithm.name) {
      (void)equation.time(gathered(collective), collective.granule, group);
      const bool there = traits_of(collective.kind).gathers();
      const bool back = traits_of(collective.kind).sums;
      // The two directions of a port or trunk are adjacent.
      for (size_t link = 0; link < once.size(); ++link)
        result[link] = static_cast<int64_t>((there ? once[link] : 0) + (back ? once[link ^ 1] : 0));
      return result;
    }
  for (const Message& message : messages(algorithm, collective, group.grouping))
    for (const Route along = topology.route(collective.devices[at(message.from)],
                                            collective.devices[at(message.to)]);
         int link : along.span())
      result[at(link)] += message.bytes;
  return result;
}

CheapestEstimate cheapest_estimate(const Collective& collective, const Topology& topology) {
  CheapestEstimate best;
  const bool sync = collective.kind == CommunicationKind::kGradientSync;
  if (collective.devices.size() < 2 || traits_of(collective.kind).is_pairwise()) {
    // Medley sends gradient syncs itself, independent of the library.
    const Algorithm* runs = sync ? nullptr : topology.library_algorithm(collective.kind);
    for (const Algorithm& algorithm : algorithms())
      if (runs ? &algorithm == runs : fits(algorithm, collective.kind))
        return {&algorithm, estimate(algorithm, collective, topology)};
  }
  if (const Algorithm* runs = topology.library_algorithm(collective.kind))
    return {runs, estimate(*runs, collective, topology)};
  const Group group(collective, topology);
  const Lengths lengths = gathered(collective);
  const bool nested = group.members.size() > 1 && group.members.size() < group.devices.size();
  for (const Algorithm& algorithm : algorithms()) {
    if (!fits(algorithm, collective.kind) || (algorithm.hierarchical && !nested) ||
        algorithm.name.starts_with("padded") ||
        (best.algorithm && is_beaten(algorithm, lengths, collective, group, best.time)))
      continue;
    const Nanoseconds time = estimate(algorithm, collective, lengths, group);
    if (!best.algorithm || time < best.time) best = {&algorithm, time};
  }
  return best;
}

}  // namespace medley
