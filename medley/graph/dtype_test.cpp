#include "medley/graph/dtype.h"

#include <gtest/gtest.h>

namespace medley {
namespace {

TEST(DType, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i)
    EXPECT_EQ(parse_dtype(to_string(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(parse_dtype("float32"), std::nullopt);
}

TEST(DType, KnowsBytesAndKind) {
  EXPECT_EQ(bytes_per_element(DType::kBF16), 2);
  EXPECT_EQ(bytes_per_element(DType::kBool), 1);
  EXPECT_TRUE(is_floating(DType::kBF16));
  EXPECT_FALSE(is_floating(DType::kI64));
}

}  // namespace
}  // namespace medley
