#include "medley/measure/emulated_collectives.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>

#include "medley/base/at.h"
#include "medley/cost/calibrate.h"
#include "medley/emulation/ledger.h"
#include "medley/measure/emulated_device.h"
#include "medley/measure/wanted.h"

namespace medley {
namespace {

constexpr int64_t kGranule = 8;  // fits all dtypes

// Returns a pair of devices for every network and pair of pools that uses it.
std::vector<std::vector<int>> groups(const Topology& topology) {
  const Cluster& cluster = topology.cluster();
  const int n = topology.num_devices();
  std::vector<std::vector<int>> result;
  if (n < 2) return result;
  std::vector<int> all(at(n));
  std::iota(all.begin(), all.end(), 0);
  std::set<std::tuple<int, int, int>> seen;  // network, pools
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      const auto pool = [&](int d) { return cluster.devices[at(d)].pool; };
      const int network = topology.path(a, b).network;
      if (seen.emplace(network, pool(a), pool(b)).second) result.push_back({a, b});
    }
  if (n > 2) result.push_back(all);
  return result;
}

// Returns equal shares, half to the first, and all to the first, as multiples of the granule.
std::vector<std::vector<int64_t>> divisions(int64_t bytes, size_t devices) {
  const auto n = static_cast<int64_t>(devices);
  const auto whole = [](int64_t length) { return length / kGranule * kGranule; };
  std::vector<int64_t> even(devices, whole(bytes / n)), half(devices, whole(bytes / 2 / (n - 1))),
      one(devices, 0);
  half[0] = whole(bytes / 2);
  one[0] = whole(bytes);
  if (devices == 2) half = {whole(bytes * 3 / 4), whole(bytes / 4)};
  return {even, half, one};
}

}  // namespace

std::vector<Collective> wanted_collectives(const Topology& topology, int64_t most_bytes) {
  std::vector<Collective> result;
  for (const std::vector<int>& devices : groups(topology))
    for (int64_t bytes = 4096; bytes <= most_bytes; bytes *= 8) {
      result.push_back({CommunicationKind::kAllReduce, devices, {bytes}, kGranule});
      for (const auto& lengths : divisions(bytes, devices.size())) {
        if (lengths[0] == 0) continue;  // more devices than bytes
        for (CommunicationKind kind :
             {CommunicationKind::kAllGather, CommunicationKind::kReduceScatter})
          result.push_back({kind, devices, lengths, kGranule});
      }
      const auto n = static_cast<int64_t>(devices.size());
      const int64_t block = bytes / (n * n) / kGranule * kGranule;
      if (block > 0)
        result.push_back({CommunicationKind::kAllToAll,
                          devices,
                          std::vector<int64_t>(at(n * n), block),
                          kGranule});
    }
  return result;
}

CollectiveMeasurement describe(const Collective& collective,
                               const Cluster& cluster,
                               std::string_view algorithm,
                               Nanoseconds time) {
  CollectiveMeasurement result{
      to_string(collective.kind), std::string(algorithm), {}, collective.lengths, time};
  for (int device : collective.devices)
    result.devices.push_back(cluster.devices.at(at(device)).name);
  return result;
}

std::vector<CollectiveMeasurement> measure_emulated(const Collective& collective,
                                                    const Topology& topology) {
  std::vector<CollectiveMeasurement> result;
  const Grouping grouping = group_by_node(collective, topology);
  const std::set<int> nodes(grouping.node.begin(), grouping.node.end());
  const bool flat = nodes.size() == 1 || nodes.size() == collective.devices.size();
  for (const Algorithm& algorithm : algorithms()) {
    if (!fits(algorithm, collective.kind) || (algorithm.hierarchical && flat)) continue;
    const Nanoseconds time =
        time_alone(messages(algorithm, collective, grouping), collective, topology);
    result.push_back(describe(collective, topology.cluster(), algorithm.name, time));
  }
  return result;
}

OverlapMeasurement measure_emulated_overlap(const DeviceKind& kind, const HiddenTruth& truth) {
  Cluster pair;
  pair.pools.push_back({"pair", 2, 1, kind, false, 0});
  pair.devices = list_devices(pair.pools);
  pair.networks.push_back({"lan", false, {"pair"}, 1e6, 0, std::nullopt});
  const Topology topology(pair);
  const auto ledger = Ledger::create(topology);
  ledger->join(0);
  ledger->join(1);
  EmulatedDevice device(*ledger, 0, truth);
  const OpTimer timer = device.timer();
  const Graph op = ladder(WorkClass::kMatmul, DType::kF32, 1 << 20, 1 << 20).at(0);
  const Nanoseconds alone = measure(timer, op).time;
  // A second of traffic in both directions: longer than the op.
  const std::vector<RoundStep> steps[] = {{{0, 1, 1'000'000, true}, {0, 1, 1'000'000, false}},
                                          {{0, 0, 1'000'000, true}, {0, 0, 1'000'000, false}}};
  const int mine = ledger->post(0, {1, 0}, 2, steps[0], "overlap"),
            other = ledger->post(1, {1, 0}, 2, steps[1], "overlap");
  ledger->begin_wait(1, other);
  const Nanoseconds together = measure(timer, op).time;
  ledger->release(mine);
  ledger->release(other);
  ledger->leave(0);
  ledger->leave(1);
  return {kind.name, std::max(1.0, together / alone)};
}

}  // namespace medley
