#include "medley/graph/size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "medley/base/error.h"

namespace medley {
namespace {

const Size b = Size::of(0), s = Size::of(1);
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Size, ProductsKeepSymbolsSorted) {
  EXPECT_EQ(s * b * Size(3), b * Size(3) * s);
  EXPECT_THAT((s * b * b).symbols, testing::ElementsAre(0, 0, 1));
}

// Zero rows are zero elements for any batch, so zero has one form.
TEST(Size, ZeroHasNoSymbols) { EXPECT_EQ(b * Size(0), Size(0)); }

TEST(Size, DivideIsExactOrNothing) {
  EXPECT_EQ(divide(b * s * Size(12), b * Size(4)), s * Size(3));
  EXPECT_EQ(divide(b * Size(12), Size(5)), std::nullopt);
  EXPECT_EQ(divide(Size(12), b), std::nullopt);
  EXPECT_EQ(divide(b, b * b), std::nullopt);
  EXPECT_EQ(divide(b, Size(0)), std::nullopt);
  EXPECT_EQ(divide(Size(0), b), Size(0));
  EXPECT_EQ(divide(Size(std::numeric_limits<int64_t>::min()), Size(-1)), std::nullopt);
}

TEST(Size, Evaluates) {
  EXPECT_EQ(evaluate(b * b * s * Size(2), {3, 5}), 90);
  EXPECT_EQ(evaluate(Size(7), {}), 7);
  EXPECT_THROW(evaluate(s, {3}), Error);
}

TEST(Size, OverflowIsAnError) {
  EXPECT_THROW(Size(kMax) * Size(2), Error);
  EXPECT_THROW(evaluate(b * Size(2), {kMax}), Error);
}

TEST(Size, TextHasTheCoefficientLast) {
  const std::vector<std::string> names{"b", "s"};
  EXPECT_EQ(to_string(b * Size(128), names), "b*128");
  EXPECT_EQ(to_string(s * b * b, names), "b*b*s");
  EXPECT_EQ(to_string(Size(128), names), "128");
  EXPECT_EQ(to_string(Size(1), names), "1");
}

}  // namespace
}  // namespace medley
