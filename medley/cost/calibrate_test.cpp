#include "medley/cost/calibrate.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/network/estimate.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

// Two pools of two nodes with two devices each: a fabric inside the nodes, a switch with a trunk.
Cluster cluster(double fabric, double lan, double trunk, double latency) {
  Cluster result;
  for (const char* name : {"fast", "slow"}) {
    NodePool nodes;
    nodes.name = name;
    nodes.count = nodes.devices_per_node = 2;
    nodes.kind.name = name;
    result.pools.push_back(nodes);
  }
  result.devices = list_devices(result.pools);
  result.networks.push_back({"fabric", true, {}, fabric, 1e-6, std::nullopt});
  result.networks.push_back({"lan", false, {"fast", "slow"}, lan, latency, trunk});
  return result;
}

// Every algorithm for groups within a node, a pool and the cluster, small and large.
std::vector<CollectiveMeasurement> measured(const Cluster& truth) {
  const Topology topology(truth);
  std::vector<CollectiveMeasurement> all;
  for (const std::vector<int>& devices :
       {std::vector<int>{0, 1}, {0, 2}, {0, 1, 2, 3}, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}})
    for (const int64_t bytes : {4096, 262144, 16777216})
      for (const CommunicationKind kind :
           {CommunicationKind::kAllReduce, CommunicationKind::kAllToAll}) {
        const size_t n = devices.size();
        const Collective collective{
            kind,
            devices,
            std::vector<int64_t>(kind == CommunicationKind::kAllReduce ? 1 : n * n, bytes),
            1};
        for (const Algorithm& algorithm : algorithms()) {
          if (algorithm.for_all_to_all != (kind == CommunicationKind::kAllToAll)) continue;
          CollectiveMeasurement each{
              to_string(kind), std::string(algorithm.name), {}, collective.lengths, {}};
          for (int device : devices) each.devices.push_back(truth.devices[at(device)].name);
          each.time =
              time_alone(messages(algorithm, collective, group_by_node(collective, topology)),
                         collective,
                         topology);
          all.push_back(each);
        }
      }
  return all;
}

void expect_near(const Cluster& found, const Cluster& truth, double error) {
  for (size_t n = 0; n < truth.networks.size(); ++n) {
    const Network &is = found.networks[n], &should = truth.networks[n];
    EXPECT_NEAR(is.bandwidth / should.bandwidth, 1, error) << is.name;
    EXPECT_NEAR(is.latency, should.latency, error * should.latency + 1e-7) << is.name;
    if (should.trunk) EXPECT_NEAR(*is.trunk / *should.trunk, 1, error) << is.name;
  }
}

// Times of the simulator's engine are fitted exactly from other initial figures.
TEST(Calibrate, RecoversTheRatesFromTimes) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  expect_near(calibrated(cluster(1e11, 3e9, 3e9, 1e-5), measured(truth)).cluster, truth, 0.01);
  expect_near(calibrated(cluster(2e10, 5e8, 1e9, 2e-4), measured(truth)).cluster, truth, 0.01);
}

TEST(Calibrate, FiguresThatExplainTheTimesStayExactly) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  EXPECT_EQ(calibrated(truth, measured(truth)).cluster, truth);
  EXPECT_EQ(calibrated(truth, {}).cluster, truth);
}

// One of ten measurements takes five times as long.
TEST(Calibrate, HiccupsHardlyMatter) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  auto times = measured(truth);
  for (size_t i = 0; i < times.size(); i += 10) times[i].time = times[i].time * 5;
  expect_near(calibrated(cluster(1e11, 3e9, 3e9, 1e-5), times).cluster, truth, 0.15);
}

// Two devices of one node determine nothing of the switch, and one size not both figures.
TEST(Calibrate, UnusedRatesStay) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  auto times = measured(truth);
  std::erase_if(times, [](const auto& each) { return each.devices.back() != "fast/0/1"; });
  const Cluster assumed = cluster(1e11, 3e9, 3e9, 1e-5);
  const Cluster found = calibrated(assumed, times).cluster;
  EXPECT_EQ(found.networks[1], assumed.networks[1]);
  EXPECT_NEAR(found.networks[0].bandwidth / 5e10, 1, 0.01);
}

// Latency and bandwidth stay positive for all times.
TEST(Calibrate, ContradictoryTimesGivePositiveFigures) {
  const Cluster assumed = cluster(1e11, 3e9, 3e9, 1e-5);
  const Cluster found =
      calibrated(assumed,
                 std::vector<CollectiveMeasurement>{
                     {"all_reduce", "ring", {"fast/0/0", "fast/1/0"}, {1000}, {9'000'000}},
                     {"all_reduce", "ring", {"fast/0/0", "fast/1/0"}, {100'000'000}, {1'000}},
                     {"all_reduce", "backend", {"fast/0/0", "gone/1/0"}, {100'000'000}, {1'000}}})
          .cluster;
  EXPECT_GE(found.networks[1].latency, 0);
  EXPECT_GT(found.networks[1].bandwidth, 0);
  EXPECT_TRUE(std::isfinite(found.networks[1].bandwidth));
  EXPECT_EQ(found.networks[0], assumed.networks[0]);
}

// Returns times of a library that sums by `runs`, for groups of at least `least_devices`.
std::vector<CollectiveMeasurement> of_a_library(const Cluster& truth,
                                                std::string_view runs,
                                                size_t least_devices) {
  auto times = measured(truth);
  std::erase_if(times, [&](const auto& each) {
    return each.devices.size() < least_devices ||
           each.algorithm != (each.collective == "all_to_all" ? "all-at-once" : runs);
  });
  for (CollectiveMeasurement& each : times) each.algorithm = "backend";
  return times;
}

TEST(Calibrate, FindsWhatALibraryRuns) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  for (const std::string_view runs : {"ring", "direct"}) {
    const Calibration found =
        calibrated(cluster(1e11, 3e9, 3e9, 1e-5), of_a_library(truth, runs, 2));
    expect_near(found.cluster, truth, 0.01);
    EXPECT_EQ(found.library.at(CommunicationKind::kAllReduce)->name, runs);
    EXPECT_EQ(found.library.at(CommunicationKind::kAllToAll)->name, "all-at-once");
    EXPECT_EQ(found.library.size(), 2u);
  }
}

// Groups over nodes, for which two levels would be cheapest. Assuming these, the fit would give the
// fabric a sixteenth (ring) and a fortieth (direct) of its bandwidth.
TEST(Calibrate, LibraryChoiceIsNotAssumedCheapest) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  for (const std::string_view runs : {"ring", "direct"}) {
    const Cluster found =
        calibrated(cluster(1e11, 3e9, 3e9, 1e-5), of_a_library(truth, runs, 4)).cluster;
    EXPECT_NEAR(found.networks[1].bandwidth / truth.networks[1].bandwidth, 1, 0.01) << runs;
    EXPECT_GE(found.networks[0].bandwidth, truth.networks[0].bandwidth) << runs;
  }
}

// Later queries use the library's algorithm, also for unmeasured devices.
TEST(Calibrate, TheLibrarysAlgorithmIsWhatACollectiveCosts) {
  const Cluster truth = cluster(5e10, 1.25e9, 1.5e9, 4e-5);
  const Calibration found =
      calibrated(cluster(1e11, 3e9, 3e9, 1e-5), of_a_library(truth, "ring", 2));
  const Topology topology(found.cluster, found.library), real(truth);
  const Collective asked{CommunicationKind::kAllReduce, {0, 1, 2, 4, 5, 6}, {4096}, 4};
  const auto ring = std::find_if(algorithms().begin(), algorithms().end(), [](const auto& each) {
    return each.name == "ring";
  });
  const double took = to_seconds(estimate(*ring, asked, real)).value;
  EXPECT_NEAR(to_seconds(cheapest(asked, topology).time).value, took, 0.01 * took);
  EXPECT_LT(to_seconds(cheapest(asked, real).time).value, 0.5 * took);  // five times as many rounds
}

TEST(Calibrate, AnUnknownAlgorithmIsRefused) {
  const std::vector<CollectiveMeasurement> times{
      {"all_reduce", "magic", {"fast/0/0", "fast/1/0"}, {1000}, {9'000}}};
  try {
    calibrated(cluster(1e11, 3e9, 3e9, 1e-5), times);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_THAT(error.what(), HasSubstr("found no algorithm \"magic\" for all_reduce"));
  }
}

}  // namespace
}  // namespace medley
