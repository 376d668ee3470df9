#include "medley/cluster/quantity.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::DoubleEq;
using ::testing::Optional;

TEST(Quantity, TellsBitsFromBytesAndPowersOfTwoFromPowersOfTen) {
  EXPECT_THAT(parse_quantity("300 GB/s", Dimension::kBandwidth), Optional(DoubleEq(300e9)));
  EXPECT_THAT(parse_quantity("10 Gbit/s", Dimension::kBandwidth), Optional(DoubleEq(1.25e9)));
  EXPECT_THAT(parse_quantity("16 GiB", Dimension::kMemory), Optional(DoubleEq(17179869184.0)));
  EXPECT_THAT(parse_quantity("40 GB", Dimension::kMemory), Optional(DoubleEq(40e9)));
  EXPECT_THAT(parse_quantity("3us", Dimension::kDuration), Optional(DoubleEq(3e-6)));
  EXPECT_THAT(parse_quantity("90 min", Dimension::kDuration), Optional(DoubleEq(5400)));
  EXPECT_THAT(parse_quantity("36h", Dimension::kDuration), Optional(DoubleEq(129600)));
  EXPECT_THAT(parse_quantity("1.5e2 Tflop/s", Dimension::kFlopRate), Optional(DoubleEq(150e12)));
}

// "Gb/s" may mean bits or bytes; "gb/s" has no fixed meaning.
TEST(Quantity, RefusesWhatIsAmbiguousOrOfAnotherDimension) {
  for (const char* text : {"10 Gb/s",
                           "10 gbit/s",
                           "10 Gbps",
                           "10",
                           "",
                           "GB/s",
                           "10 GB/s x",
                           "inf GB/s",
                           "nan B/s",
                           "1e308 TB/s",
                           "3 us"})
    EXPECT_EQ(parse_quantity(text, Dimension::kBandwidth), std::nullopt) << text;
}

}  // namespace
}  // namespace medley
