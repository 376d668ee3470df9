#include "medley/cost/fit_rates.h"

#include <gmock/gmock.h>

#include <random>

namespace medley {
namespace {

DeviceKind kind(double rate, double bandwidth, double launch) {
  return {"x", {{DType::kF32, 1e15}}, {{DType::kF32, rate}}, 1e9, bandwidth, launch};
}

// Host: 30 us + 3 * 10 us. Device: 1e9 flops at 1e13 flop/s, then twice 1e7 bytes at 1e12 B/s.
TEST(FitRates, ABlockTakesWhatTheSlowerOfHostAndDeviceTakes) {
  const OpWork mm{WorkClass::kMatmul, {1e9, 1e6}, DType::kF32};
  const OpWork add{WorkClass::kMemory, {0, 1e7}, DType::kF32};
  const OpWork view{WorkClass::kView, {}, DType::kF32};
  const std::vector<OpWork> ops{mm, add, view, add};
  EXPECT_DOUBLE_EQ(block_time({kind(1e13, 1e12, 1e-5), {3e-5}}, ops).value, 120e-6);
  EXPECT_DOUBLE_EQ(block_time({kind(1e14, 1e13, 1e-5), {3e-5}}, ops).value, 60e-6);
}

// Blocks of one to three ops, from far below the launch to far above it, times off by up to 5 %.
TEST(FitRates, RecoversTheRatesFromTimes) {
  const FittedKind truth{kind(2e13, 7e11, 8e-6), {4e-5}};
  std::mt19937 random(3);
  const auto draw = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  std::vector<TimedBlock> blocks;
  for (int i = 0; i < 300; ++i) {
    TimedBlock block;
    for (int k = 0; k <= i % 3; ++k) {
      const double bytes = std::exp(draw(std::log(1e5), std::log(1e9)));
      block.ops.push_back(i % 2 ? OpWork{WorkClass::kMemory, {0, bytes}, DType::kF32}
                                : OpWork{WorkClass::kMatmul, {300 * bytes, bytes}, DType::kF32});
    }
    block.time = {block_time(truth, block.ops).value * draw(0.95, 1.05)};
    blocks.push_back(block);
  }
  const FittedKind found = fit_rates(kind(1e12, 1e11, 1e-6), blocks);
  EXPECT_NEAR(found.kind.sustained.at(DType::kF32) / 2e13, 1, 0.02);
  EXPECT_NEAR(found.kind.memory_bandwidth / 7e11, 1, 0.02);
  EXPECT_NEAR(found.kind.launch_latency / 8e-6, 1, 0.1);
  EXPECT_NEAR(found.entry.value / 4e-5, 1, 0.05);
}

}  // namespace
}  // namespace medley
