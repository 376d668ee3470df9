#include "medley/base/communication_kind.h"

#include <gtest/gtest.h>

#include <iterator>

namespace medley {
namespace {

// Rows are in the order of the enumerators.
static_assert(traits_of(CommunicationKind::kGradientSync).name == "gradient_sync" &&
              at(CommunicationKind::kGradientSync) + 1 == std::size(kCommunications));

TEST(CommunicationKind, NamesAreFoundAgain) {
  for (size_t i = 0; i < std::size(kCommunications); ++i) {
    const auto kind = static_cast<CommunicationKind>(i);
    EXPECT_EQ(find_communication_kind(to_string(kind)), kind);
  }
  EXPECT_EQ(find_communication_kind("no such kind"), std::nullopt);
}

TEST(CommunicationKind, LengthsAreOfTheWholeOfChunksOrOfPairs) {
  EXPECT_EQ(num_lengths(CommunicationKind::kAllReduce, 4), 1);
  EXPECT_EQ(num_lengths(CommunicationKind::kAllGather, 4), 4);
  EXPECT_EQ(num_lengths(CommunicationKind::kReduceScatter, 4), 4);
  EXPECT_EQ(num_lengths(CommunicationKind::kAllToAll, 4), 16);
  EXPECT_EQ(num_lengths(CommunicationKind::kGradientSync, 4), 32);
}

}  // namespace
}  // namespace medley
