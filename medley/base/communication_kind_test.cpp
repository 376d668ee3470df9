#include "medley/base/communication_kind.h"

#include <gtest/gtest.h>

namespace medley {
namespace {

TEST(CommunicationKind, NamesAreFoundAgain) {
  for (const auto kind : {CommunicationKind::kAllReduce,
                          CommunicationKind::kAllGather,
                          CommunicationKind::kReduceScatter,
                          CommunicationKind::kAllToAll,
                          CommunicationKind::kTransfer})
    EXPECT_EQ(find_communication_kind(to_string(kind)), kind);
  EXPECT_EQ(find_communication_kind("broadcast"), std::nullopt);
}

}  // namespace
}  // namespace medley
