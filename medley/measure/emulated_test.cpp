// Measuring by emulation finds the hidden truth without access to it.

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/emulation/emulated_clock.h"
#include "medley/measure/drift.h"
#include "medley/measure/emulated_collectives.h"
#include "medley/measure/emulated_device.h"
#include "medley/measure/session.h"
#include "medley/ops/one_op.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const DeviceKind kKind{"fast", {{DType::kF32, 1e12}}, {{DType::kF32, 1e12}}, 1e9, 1e11, 1e-6};

Cluster cluster(int nodes) {
  Cluster cluster;
  cluster.pools.push_back({"fast", nodes, 1, kKind, false, 0});
  NodePool slow{"slow", 1, 1, scaled(kKind, 0.5), false, 0};
  slow.kind.name = "slow";
  cluster.pools.push_back(slow);
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"fast", "slow"}, 1e9, 10e-6, std::nullopt}};
  return cluster;
}

Graph product() {
  return one_op({"f32[96, 512]", "f32[512, 64]"}, "aten.mm.default(%0, %1) : f32[96, 64]");
}

Graph two_layers() {
  Graph graph = product();
  Op again = graph.ops[0];
  add_op(graph, again, {graph.values[2].type});
  return graph;
}

TEST(EmulatedDevice, TakesTheTimeOfTheHiddenTruth) {
  const HiddenTruth truth{7, 0.3};
  EmulatedDevice device(kKind, truth);
  const Graph graph = product();
  const Graph single = single_op(graph, graph.ops[0], {1, 0, 0, 0});
  const Nanoseconds expected = truth.op_time(kKind, op_work(single, single.ops[0], {}));
  EXPECT_EQ(measure(device.timer(), single).time, expected);
  EXPECT_NE(expected, op_time(kKind, single, single.ops[0], {}));
  EXPECT_EQ(measure(device.timer(), single).time, expected);  // and again
}

// The first of three windows is disturbed: its runs take seven times as long.
TEST(OpTimer, IsNotMisledByOneDisturbedWindow) {
  EmulatedDevice device(kKind, {});
  ManualClock clock;
  OpTimer timer{.executor = device.timer().executor,
                .clock = clock,
                .make_operand = device.timer().make_operand};
  int runs = 0;
  timer.synchronize = [&] { clock.advance({runs++ < 10 ? 7'000'000 : 1'000'000}); };
  timer.window = {50'000'000};
  const Graph graph = product();
  EXPECT_EQ(measure(timer, single_op(graph, graph.ops[0], {1, 0, 0, 0})).time.value, 1'000'000);
  EXPECT_EQ(runs, timer.warm_ups + 8 + 50 + 50);
}

// An op that exceeds the device type's memory is named, and the others are measured.
TEST(MeasuringSession, GoesOnAfterWhatDoesNotFit) {
  const Cluster machines = cluster(1);
  WantedOps wanted(machines);
  const Graph large = one_op({"f32[b, 1000000]"}, "aten.neg.default(%0) : f32[b, 1000000]");
  wanted.add(large, {1000, 0, 0, 0});
  wanted.add(two_layers(), {1, 0, 0, 0});
  MeasuringSession session(wanted.take(), {"emulated", {}, {}, {}}, "emulated");
  EmulatedDevice device(kKind, {});
  EXPECT_EQ(session.run(device.timer(), "fast", {1'000'000'000}), 0);
  EXPECT_THAT(session.failed(), SizeIs(1));
  EXPECT_THAT(session.failed().at(0), HasSubstr("out of memory"));
  EXPECT_THAT(session.profile().ops, SizeIs(1));
  EXPECT_EQ(session.num_left(), 2);  // the other device type
}

// Two equal layers are one op, once for each of the two device types.
TEST(MeasuringSession, MeasuresWhatRepeatsOnceAndGoesOnWhereItStopped) {
  const Cluster machines = cluster(1);
  const auto wanted = [&] {
    WantedOps ops(machines);
    ops.add(two_layers(), {1, 0, 0, 0});
    ops.add_grid({2, 4});
    return ops.take();
  };
  MeasuringSession first(wanted(), {"emulated", {}, {}, {}}, "emulated");
  EXPECT_EQ(first.wanted().seen, 4);
  EXPECT_EQ(first.wanted().unique, 2);
  EXPECT_GT(first.num_wanted(), 2 * 7);
  EmulatedDevice device(kKind, {3, 0.2});
  // A limit of zero still measures one.
  const int64_t all = first.num_wanted() / 2;
  EXPECT_EQ(first.run(device.timer(), "fast", {0}), all - 1);
  MeasuringSession second(wanted(), first.profile(), "emulated");
  EXPECT_EQ(second.num_left(), 2 * all - 1);
  EXPECT_EQ(second.run(device.timer(), "fast", {60'000'000'000}), 0);
  EXPECT_THAT(second.profile().ops, SizeIs(all));
  EXPECT_THAT(second.failed(), IsEmpty());
  EXPECT_EQ(parse_profile(print(second.profile()), "p"), second.profile());
}

TEST(WantedOps, AreSortedByNeed) {
  const Cluster machines = cluster(1);
  WantedOps wanted(machines);
  wanted.add(two_layers(), {1, 0, 0, 0});
  wanted.add_grid({2});
  const std::vector<WantedOp> ops = wanted.take().ops;
  EXPECT_TRUE(std::ranges::is_sorted(ops, {}, &WantedOp::need));
  const auto few = std::ranges::count(ops, Need::kFewSizes, &WantedOp::need);
  EXPECT_GE(few, 2);  // a size for each of the two device types
  EXPECT_GE(std::ranges::count(ops, Need::kSizes, &WantedOp::need), 2 * few);
}

// Two processes of a device type share its ops, without omissions.
TEST(MeasuringSession, Divides) {
  const Cluster machines = cluster(1);
  WantedOps ops(machines);
  ops.add(two_layers(), {1, 0, 0, 0});
  ops.add_grid({2});
  const Wanted wanted = ops.take();
  const Profile none{"emulated", {}, {}, {}};
  EmulatedDevice device(kKind, {});
  MeasuringSession even(wanted, none, "emulated"), odd(wanted, none, "emulated");
  even.run(device.timer(), "fast", {60'000'000'000}, 0, 2);
  odd.run(device.timer(), "fast", {60'000'000'000}, 1, 2);
  EXPECT_GT(even.num_left(), even.num_wanted() / 2);
  even.add(odd.profile());
  EXPECT_EQ(even.num_left(), even.num_wanted() / 2);  // the other device type
  EXPECT_EQ(static_cast<int64_t>(even.profile().ops.size()),
            static_cast<int64_t>(wanted.ops.size() / 2));
}

// Ports of 1 GB/s, latency of 10 us: an all-gather of two takes the larger chunk's time.
TEST(EmulatedCollectives, TakeWhatTheLinksGive) {
  const Topology topology(cluster(2));
  const Collective gather{CommunicationKind::kAllGather, {0, 2}, {3'000'000, 1'000'000}, 8};
  bool found = false;
  for (const CollectiveMeasurement& each : measure_emulated(gather, topology)) {
    EXPECT_EQ(each.collective, "all_gather");
    EXPECT_EQ(each.devices, (std::vector<std::string>{"fast/0/0", "slow/0/0"}));
    if (each.algorithm != "ring") continue;
    found = true;
    EXPECT_EQ(each.time, Nanoseconds{3'010'000});
  }
  EXPECT_TRUE(found);
}

// Two devices of the pool, one of each, and all: sizes from 4 KiB on.
TEST(EmulatedCollectives, CoverLinksAndSizes) {
  const Topology topology(cluster(3));
  const std::vector<Collective> wanted = wanted_collectives(topology, 1 << 15);
  std::set<std::vector<int>> groups;
  for (const Collective& each : wanted) groups.insert(each.devices);
  EXPECT_EQ(groups, (std::set<std::vector<int>>{{0, 1}, {0, 3}, {0, 1, 2, 3}}));
  EXPECT_THAT(wanted, SizeIs(3 * 2 * 8));
  EXPECT_THAT(wanted_collectives(Topology(cluster(0)), 1 << 15), IsEmpty());
}

TEST(EmulatedCollectives, EmulatedOpsDoNotSlowDown) {
  EXPECT_EQ(measure_emulated_overlap(kKind, {1, 0.3}), (OverlapMeasurement{"fast", 1}));
}

}  // namespace
}  // namespace medley
