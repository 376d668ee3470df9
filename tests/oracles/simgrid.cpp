// SimGrid (https://simgrid.org) as the oracle of max-min fair sharing: the same messages over the
// same links, in its fluid network model and in FlowEngine, end at the same times.
//
// Its models include more of TCP than a fair share. These settings remove the rest:
//   network/model:CM02            the model without measured corrections
//   network/latency-factor:1, network/bandwidth-factor:1, network/weight-S:0
//                                 links have their nominal speed, and all flows weigh the same
//   network/crosstraffic:0        acknowledgements need no bandwidth on the way back
//   network/TCP-gamma:0           no window bounds a flow
// Links have no latency: flows of unequal latency would get shares in inverse proportion to it, as
// in TCP.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <simgrid/s4u.hpp>
#include <vector>

#include "medley/network/flow_engine.h"

namespace medley {
namespace {

namespace s4u = simgrid::s4u;

struct Flow {
  int from = 0, to = 0;  // devices; all pairs are distinct
  int64_t bytes = 0;
  int64_t start = 0;            // ns
  double ours = 0, theirs = 0;  // end, ns
};

struct Instance {
  Topology topology;
  std::vector<Flow> flows;  // by start
};

Cluster random_cluster(std::mt19937& random) {
  const auto any = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Cluster cluster;
  std::vector<std::string> names;
  for (unsigned pool = 0; pool < 1 + random() % 3; ++pool) {
    NodePool nodes;
    nodes.name = names.emplace_back(fmt::format("p{}", pool));
    nodes.count = 1 + static_cast<int>(random() % 4);
    nodes.devices_per_node = 2 + static_cast<int>(random() % 3);
    cluster.pools.push_back(nodes);
  }
  cluster.devices = list_devices(cluster.pools);
  if (random() % 2)
    cluster.networks.push_back({"fabric", true, {}, any(1e9, 1e11), 0, std::nullopt});
  cluster.networks.push_back({"lan", false, names, any(1e7, 3e9), 0, std::nullopt});
  if (names.size() > 1 && random() % 2) cluster.networks.back().trunk = any(1e7, 3e9);
  return cluster;
}

Instance random_instance(std::mt19937& random) {
  Instance instance{Topology(random_cluster(random)), {}};
  const int n = instance.topology.num_devices();
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      if (from == to || random() % static_cast<unsigned>(n) > 2) continue;
      const auto start = random() % 2 ? 0 : static_cast<int64_t>(random() % 20'000'000);
      instance.flows.push_back(
          {from, to, 1'000 + static_cast<int64_t>(random() % 50'000'000), start});
    }
  std::ranges::stable_sort(instance.flows, {}, &Flow::start);
  return instance;
}

// Every flow has its own stream, so that flows are independent.
void run_ours(Instance& instance) {
  const auto n = static_cast<int64_t>(instance.flows.size());
  const EngineRoom room = engine_room(instance.topology, 2 * n, 2 * n, 2 * n, n);
  std::vector<std::byte> memory(FlowEngine::bytes_needed(room));
  FlowEngine::format(memory, room);
  FlowEngine engine(memory, instance.topology);
  std::vector<int> receivers;
  for (const Flow& flow : instance.flows) {
    const auto number = static_cast<int64_t>(receivers.size());
    const Turn turn{static_cast<int>(number), false};
    const RoundStep send{0, flow.to, flow.bytes, true}, receive{0, flow.from, flow.bytes, false};
    engine.post(flow.from, {0, number}, 2, {flow.start}, std::span(&send, 1), turn);
    receivers.push_back(
        engine.post(flow.to, {0, number}, 2, {flow.start}, std::span(&receive, 1), turn));
  }
  while (engine.advance({int64_t{1} << 60})) {
  }
  for (size_t i = 0; i < receivers.size(); ++i)
    instance.flows[i].ours = static_cast<double>(engine.completion(receivers[i]).value().end.value);
}

// SimGrid has one engine per process, so each instance is a separate zone. Every flow has two
// hosts, which share the links of its route with others.
void add_theirs(s4u::NetZone* root, Instance& instance, size_t number) {
  auto* zone = s4u::create_full_zone(fmt::format("zone{}", number))->set_parent(root);
  std::vector<const s4u::Link*> links;
  for (const Link& link : instance.topology.links())
    links.push_back(zone->create_link(fmt::format("{}:{}", number, link.name), link.bandwidth.value)
                        ->set_latency(0)
                        ->seal());
  for (size_t i = 0; i < instance.flows.size(); ++i) {
    Flow& flow = instance.flows[i];
    s4u::Host* from = zone->create_host(fmt::format("{}:{}:from", number, i), 1e9)->seal();
    s4u::Host* to = zone->create_host(fmt::format("{}:{}:to", number, i), 1e9)->seal();
    std::vector<s4u::LinkInRoute> route;
    for (const int link : instance.topology.route(flow.from, flow.to).span())
      route.emplace_back(links[static_cast<size_t>(link)]);
    zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route, false);
    s4u::Actor::create(fmt::format("{}:{}", number, i), from, [from, to, &flow] {
      s4u::this_actor::sleep_until(1e-9 * static_cast<double>(flow.start));
      s4u::Comm::sendto(from, to, static_cast<uint64_t>(flow.bytes));
      flow.theirs = 1e9 * s4u::Engine::get_clock();
    });
  }
  zone->seal();
}

TEST(SimGrid, FlowsEndAtTheSameTimes) {
  std::string name = "simgrid_oracle";
  std::vector<std::string> settings = {"network/model:CM02",
                                       "network/latency-factor:1",
                                       "network/bandwidth-factor:1",
                                       "network/weight-S:0",
                                       "network/crosstraffic:0",
                                       "network/TCP-gamma:0",
                                       "contexts/stack-size:64"};
  int argc = 1;
  std::array<char*, 2> argv{name.data(), nullptr};
  s4u::Engine engine(&argc, argv.data());
  for (const std::string& setting : settings) s4u::Engine::set_config(setting);

  std::mt19937 random(5);
  std::vector<Instance> instances;
  for (int i = 0; i < 400; ++i) instances.push_back(random_instance(random));
  s4u::NetZone* root = s4u::create_full_zone("all");
  for (size_t i = 0; i < instances.size(); ++i) {
    run_ours(instances[i]);
    add_theirs(root, instances[i], i);
  }
  root->seal();
  engine.run();

  double furthest = 0;
  size_t compared = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    // We round every end up to a nanosecond, SimGrid to 1e-9 s (precision/timing), which delays
    // subsequent changes as much. Twice for each flow bounds the sum.
    const auto most = 2 * static_cast<double>(instances[i].flows.size());
    for (const Flow& flow : instances[i].flows) {
      ++compared;
      const double apart = std::abs(flow.ours - flow.theirs);
      furthest = std::max(furthest, apart);
      EXPECT_LE(apart, most) << "instance " << i << ", from " << flow.from << " to " << flow.to
                             << ": " << flow.bytes << " bytes from " << flow.start << " ns end at "
                             << flow.ours << " ns here, at " << flow.theirs << " ns there";
    }
  }
  fmt::print("{} flows of {} networks compared; furthest apart: {:.1f} ns\n",
             compared,
             instances.size(),
             furthest);
  EXPECT_GT(compared, 1000u);
}

}  // namespace
}  // namespace medley
