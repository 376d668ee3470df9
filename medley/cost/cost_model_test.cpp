#include "medley/cost/cost_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "medley/base/error.h"
#include "medley/emulation/hidden_truth.h"
#include "medley/ops/one_op.h"

namespace medley {
namespace {

DeviceKind kind(const std::string& name) {
  return {name, {{DType::kF32, 1e12}}, {{DType::kF32, 1e12}}, 1e9, 1e11, 1e-6};
}

Cluster cluster() {
  Cluster result;
  for (const char* name : {"fast", "slow"})
    result.pools.push_back({name, 2, 1, kind(name), false, 0});
  result.devices = list_devices(result.pools);
  result.networks.push_back({"lan", false, {"fast", "slow"}, 1e9, 1e-4, std::nullopt});
  return result;
}

SizedOp sized(const std::string& op, WorkClass work_class, double size) {
  const Work work = work_class == WorkClass::kMemory ? Work{0, size} : Work{size, size / 100};
  return {op + "(" + std::to_string(size) + ")", op, work_class, DType::kF32, work};
}

void sort(Profile& profile) {
  std::ranges::sort(profile.ops, [](const OpMeasurement& a, const OpMeasurement& b) {
    return std::tie(a.kind, a.op.key) < std::tie(b.kind, b.op.key);
  });
}

TEST(CostModel, WithoutAProfileIsAnalytic) {
  const CostModel costs(cluster());
  const SizedOp op = sized("aten.mm.default", WorkClass::kMatmul, 1e9);
  EXPECT_EQ(costs.op(kind("fast"), op), (Cost{Nanoseconds{1'001'000}, CostSource::kAnalytic}));
  EXPECT_EQ(costs.overlap_slowdown(kind("fast")), 1);
}

TEST(CostModel, TakesWhatIsMeasuredThenTheClassThenTheRoof) {
  const SizedOp gelu = sized("aten.gelu.default", WorkClass::kMemory, 1e6);
  Profile profile{"null", {{"fast", gelu, {22'000}, 1}, {"slow", gelu, {33'000}, 1}}, {}, {}};
  profile.overlaps = {{"slow", 1.25}};
  const CostModel costs(cluster(), profile);
  EXPECT_EQ(costs.op(kind("fast"), gelu), (Cost{Nanoseconds{22'000}, CostSource::kMeasured}));
  EXPECT_EQ(costs.op(kind("slow"), gelu), (Cost{Nanoseconds{33'000}, CostSource::kMeasured}));
  // Two and three times the roofline: 1 us + 2e6 bytes at 1e11 B/s.
  const SizedOp larger = sized("aten.neg.default", WorkClass::kMemory, 2e6);
  EXPECT_EQ(costs.op(kind("fast"), larger), (Cost{Nanoseconds{42'000}, CostSource::kInterpolated}));
  EXPECT_EQ(costs.op(kind("slow"), larger), (Cost{Nanoseconds{63'000}, CostSource::kInterpolated}));
  const SizedOp mm = sized("aten.mm.default", WorkClass::kMatmul, 1e9);
  EXPECT_EQ(costs.op(kind("slow"), mm), (Cost{Nanoseconds{1'001'000}, CostSource::kAnalytic}));
  EXPECT_EQ(costs.overlap_slowdown(kind("fast")), 1);
  EXPECT_EQ(costs.overlap_slowdown(kind("slow")), 1.25);
}

// A type without a rate for f64 can still have f64 measurements.
TEST(CostModel, AMeasuredTimeNeedsNoRate) {
  SizedOp mm = sized("aten.mm.default", WorkClass::kMatmul, 1e9);
  mm.dtype = DType::kF64;
  const CostModel costs(cluster(), {"null", {{"fast", mm, {5}, 1}, {"slow", mm, {6}, 1}}, {}, {}});
  EXPECT_EQ(costs.op(kind("slow"), mm), (Cost{Nanoseconds{6}, CostSource::kMeasured}));
}

TEST(CostModel, FindsOpsOfAGraphUnderTheirKeys) {
  const Graph graph = one_op({"f32[b, 4]", "f32[4, 8]"}, "aten.mm.default(%0, %1) : f32[b, 8]");
  const SizedOp op = sized_op(graph, graph.ops[0], {100});
  const Profile profile{"null", {{"fast", op, {7'000}, 1}, {"slow", op, {9'000}, 1}}, {}, {}};
  const CostModel costs(cluster(), profile);
  EXPECT_EQ(costs.op(kind("slow"), graph, graph.ops[0], {100}),
            (Cost{Nanoseconds{9'000}, CostSource::kMeasured}));
  EXPECT_EQ(costs.op(kind("slow"), graph, graph.ops[0], {101}).source, CostSource::kInterpolated);
  const std::vector<OpId> twice{0, 0};
  EXPECT_EQ(costs.ops(kind("fast"), graph, twice, {100}),
            (Cost{Nanoseconds{14'000}, CostSource::kMeasured}));
}

TEST(CostModel, OtherDevicesAreRefused) {
  const SizedOp gelu = sized("aten.gelu.default", WorkClass::kMemory, 1e6);
  EXPECT_THROW(CostModel(cluster(), {"null", {{"fast", gelu, {1}, 1}}, {}, {}}), Error);
}

// An op twice as slow as its class stays so at sizes with measurements of other ops only.
TEST(CostModel, AnOpKeepsItsDistanceFromItsClass) {
  Profile profile{"null", {}, {}, {}};
  const auto roof = [](double size) { return 1'000 + size / 100; };
  for (const char* name : {"fast", "slow"})
    for (int power = 10; power < 24; ++power) {
      const double size = std::exp2(power);
      const double bend = power < 16 ? 1 : 1.5;
      for (const char* op : {"add", "neg", "mul"})
        profile.ops.push_back(
            {name, sized(op, WorkClass::kMemory, size), {std::llround(bend * roof(size))}, 1});
      if (power == 12 || power == 14)
        profile.ops.push_back({name,
                               sized("softmax", WorkClass::kMemory, size * 1.01),
                               {std::llround(2 * roof(size * 1.01))},
                               1});
    }
  sort(profile);
  const CostModel costs(cluster(), profile);
  const Cost cost = costs.op(kind("fast"), sized("softmax", WorkClass::kMemory, std::exp2(20)));
  EXPECT_EQ(cost.source, CostSource::kInterpolated);
  // The ratio is limited to the measured range of the class: 2, not 3.
  EXPECT_NEAR(static_cast<double>(cost.value.value),
              2 * roof(std::exp2(20)),
              0.02 * 2 * roof(std::exp2(20)));
}

// Measuring a grid through the emulation approximates its hidden truth. The truth has steps that
// the curves lack: at powers of two of the work, and at one size above.
TEST(CostModel, InterpolationComesNearTheHiddenTruth) {
  const HiddenTruth truth{7, 0.3};
  std::mt19937 random(1);
  std::uniform_real_distribution<double> mantissa(1, 2);
  const WorkClass classes[] = {WorkClass::kMatmul, WorkClass::kMemory, WorkClass::kAttention};
  const auto time = [&](const std::string& name, const SizedOp& op) {
    return truth.op_time(kind(name), {op.work_class, op.work, op.dtype});
  };
  Profile profile{"emulated seed 7", {}, {}, {}};
  for (const char* name : {"fast", "slow"})
    for (WorkClass work_class : classes)
      for (int power = 12; power <= 28; ++power)
        for (int i = 0; i < 2; ++i) {
          const SizedOp op =
              sized(i ? "a" : "b", work_class, std::exp2(power) * (i ? mantissa(random) : 1));
          profile.ops.push_back({name, op, time(name, op), 5});
        }
  sort(profile);
  const CostModel costs(cluster(), profile);
  std::vector<double> errors;
  for (int i = 0; i < 3000; ++i) {
    const std::string name = i % 2 ? "fast" : "slow";
    const double size = std::exp2(12 + i % 16) * mantissa(random);
    const SizedOp op = sized(i % 3 ? "a" : "c", classes[(i / 7) % 3], size);
    const Cost cost = costs.op(kind(name), op);
    EXPECT_EQ(cost.source, CostSource::kInterpolated);
    errors.push_back(std::abs(cost.value / time(name, op) - 1));
  }
  std::ranges::sort(errors);
  RecordProperty("median", std::to_string(errors[errors.size() / 2]));
  RecordProperty("worst", std::to_string(errors.back()));
  EXPECT_LT(errors[errors.size() / 2], 0.02);
  EXPECT_LT(errors.back(), 0.3);  // near a step
}

TEST(CostModel, MeasuredCollectivesChangeTheNetworkForEverybody) {
  const SizedOp gelu = sized("aten.gelu.default", WorkClass::kMemory, 1e6);
  Profile profile{"null", {{"fast", gelu, {22'000}, 1}, {"slow", gelu, {33'000}, 1}}, {}, {}};
  const Collective gather{CommunicationKind::kAllGather, {0, 2}, {1'000'000, 1'000'000}, 1};
  // 200 us and 1e6 bytes at 0.5 GB/s; 200 us and 1e3 bytes.
  for (const auto& [bytes, time] : {std::pair{1'000'000, 2'200'000}, std::pair{1'000, 202'000}})
    profile.collectives.push_back(
        {"all_gather", "ring", {"fast/0/0", "slow/0/0"}, {bytes, bytes}, {time}});
  const CostModel costs(cluster(), profile);
  EXPECT_NEAR(costs.cluster().networks[0].latency, 2e-4, 1e-7);
  EXPECT_NEAR(costs.topology().links()[0].bandwidth.value, 5e8, 5e5);
  EXPECT_EQ(costs.collective(gather).source, CostSource::kInterpolated);
  EXPECT_NEAR(to_seconds(costs.collective(gather).value).value, 2.2e-3, 1e-5);
}

}  // namespace
}  // namespace medley
