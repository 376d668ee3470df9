#include "medley/emulation/hidden_truth.h"

#include <gmock/gmock.h>

#include <cmath>

namespace medley {
namespace {

OpWork matmul(double flops) { return {WorkClass::kMatmul, {flops, 0}, DType::kF32}; }

TEST(HiddenTruth, WithoutSpreadIsTheModel) {
  EXPECT_EQ((HiddenTruth{3, 0}.factor("x", matmul(1e9))), 1);
}

TEST(HiddenTruth, DependsOnSeedKindClassAndSize) {
  const HiddenTruth truth{1, 0.2};
  const double here = truth.factor("x", matmul(1e9));
  EXPECT_EQ(here, truth.factor("x", matmul(1e9)));
  EXPECT_NE(here, (HiddenTruth{2, 0.2}.factor("x", matmul(1e9))));
  EXPECT_NE(here, truth.factor("y", matmul(1e9)));
  EXPECT_NE(here, truth.factor("x", matmul(1e7)));
  EXPECT_NE(here, truth.factor("x", {WorkClass::kAttention, {1e9, 0}, DType::kF32}));
}

// Within the spread at every size, and far from a constant.
TEST(HiddenTruth, IsBounded) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const HiddenTruth truth{seed, 0.2};
    double least = 2, most = 0;
    for (double flops = 1; flops < 1e13; flops *= 1.01) {
      const double factor = truth.factor("x", matmul(flops));
      least = std::min(least, factor);
      most = std::max(most, factor);
    }
    EXPECT_GE(least, 0.8);
    EXPECT_LE(most, 1.2);
    EXPECT_GT(most - least, 0.1);
  }
}

// Time is constant within a wave of work, so the factor falls, and jumps at the next wave. A kernel
// change makes steps in either direction.
TEST(HiddenTruth, HasStepsThatNoSmoothCurveHas) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const HiddenTruth truth{seed, 0.2};
    double last = truth.factor("x", matmul(4096)), highest = 0;
    int up = 0, down = 0;
    for (double flops = 4096; flops < 1e9; flops *= 1.0001) {
      const double factor = truth.factor("x", matmul(flops));
      up += factor > last + 1e-3;
      down += factor < last - 1e-3;
      highest = std::max(highest, factor - last);
      last = factor;
    }
    EXPECT_GT(up, 5) << seed;
    EXPECT_GT(down, 2) << seed;
    EXPECT_GT(highest, 0.1) << seed;  // from one full wave to two
  }
}

}  // namespace
}  // namespace medley
