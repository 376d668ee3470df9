#include "medley/base/units.h"

#include <gmock/gmock.h>

#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

TEST(Units, QuotientsHaveTheirOwnUnits) {
  EXPECT_EQ(Bytes{1000} / BytesPerSecond{250}, Seconds{4});
  EXPECT_EQ(Bytes{1000} / Seconds{4}, BytesPerSecond{250});
  EXPECT_EQ(Flops{8e12} / FlopsPerSecond{2e12}, Seconds{4});
  EXPECT_EQ(Flops{60} / Bytes{20}, FlopsPerByte{3});
  EXPECT_EQ(Bytes{30} / Bytes{20}, 1.5);
}

TEST(Units, ArithmeticStaysInTheUnit) {
  Bytes sum = Bytes{2} + 3 * Bytes{4} - Bytes{1};
  sum += Bytes{7};
  EXPECT_EQ(sum, Bytes{20});
  EXPECT_LT(-sum, Bytes{});
}

// Truncation would give a thousand events of 0.9 ns zero time.
TEST(Units, NanosecondsAreRounded) {
  EXPECT_EQ(to_nanoseconds(Seconds{0.9e-9}), Nanoseconds{1});
  EXPECT_EQ(to_nanoseconds(Seconds{1.5}), Nanoseconds{1'500'000'000});
  EXPECT_EQ(to_seconds(Nanoseconds{250'000'000}), Seconds{0.25});
}

TEST(Units, TimesOutsideTheRangeAreRefused) {
  EXPECT_THROW(to_nanoseconds(Seconds{std::numeric_limits<double>::quiet_NaN()}), Error);
  EXPECT_THROW(to_nanoseconds(Seconds{1e10}), Error);
}

TEST(Units, TextPicksThePrefix) {
  EXPECT_EQ(to_string(Bytes{0}), "0 B");
  EXPECT_EQ(to_string(Bytes{1023}), "1023 B");
  EXPECT_EQ(to_string(Bytes{19'541'950'464}), "18.2 GiB");
  EXPECT_EQ(to_string(Bytes{-2048}), "-2 KiB");
  EXPECT_EQ(to_string(Seconds{0.00153}), "1.53 ms");
  EXPECT_EQ(to_string(Seconds{0}), "0 s");
  EXPECT_EQ(to_string(Nanoseconds{42}), "42 ns");
  EXPECT_EQ(to_string(BytesPerSecond{12.5e9}), "12.5 GB/s");
  EXPECT_EQ(to_string(FlopsPerSecond{65.1e12}), "65.1 Tflop/s");
  EXPECT_EQ(to_string(FlopsPerByte{208.3}), "208 flop/B");
}

}  // namespace
}  // namespace medley
