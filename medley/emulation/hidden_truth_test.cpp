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

// Ops of nearly equal size take nearly equal times, also across a power of two; all within the
// spread.
TEST(HiddenTruth, IsContinuousAndBounded) {
  const HiddenTruth truth{1, 0.2};
  double last = truth.factor("x", matmul(1e6));
  for (double flops = 1e6; flops < 1e12; flops *= 1.001) {
    const double factor = truth.factor("x", matmul(flops));
    EXPECT_GE(factor, 0.8);
    EXPECT_LE(factor, 1.2);
    EXPECT_LT(std::abs(factor - last), 0.001);
    last = factor;
  }
}

}  // namespace
}  // namespace medley
