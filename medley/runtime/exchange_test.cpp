#include "medley/runtime/exchange.h"

#include <gmock/gmock.h>

#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Row-major over [2, 3]: device 4 is (1, 1).
TEST(GroupAlong, DiffersInOneAxisOnly) {
  EXPECT_THAT(group_along({2, 3}, 0, 4), ElementsAre(1, 4));
  EXPECT_THAT(group_along({2, 3}, 1, 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(group_along({2, 3}, 1, 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(group_along({2, 2, 2}, 1, 5), ElementsAre(5, 7));
  EXPECT_THAT(group_along({1}, 0, 0), ElementsAre(0));
}

TEST(MakeExchange, FillsInSizesOfTheDevice) {
  const ExampleProgram example = data_parallel_program({2, 5}, 1);
  const LoweredStage& stage = example.program.stages[0];
  const Exchange exchange = make_exchange(stage, stage.communications[0], 1, stage.tables[0][1]);
  EXPECT_THAT(exchange.group, ElementsAre(0, 1));
  EXPECT_EQ(exchange.me, 1);
  EXPECT_THAT(exchange.receive, ElementsAre(8, 20));
  EXPECT_EQ(exchange.bytes, 80);
  EXPECT_EQ(exchange.bytes_per_element, 4);
}

Exchange gather(int me, std::vector<int64_t> receive) {
  Exchange exchange;
  exchange.kind = CommunicationKind::kAllGather;
  exchange.group = {3, 7};
  exchange.me = me;
  exchange.receive = std::move(receive);
  exchange.name = "gather h";
  return exchange;
}

TEST(Disagreement, NamesBothDevicesAndWhatTheySay) {
  EXPECT_EQ(disagreement(gather(0, {4, 4}), gather(1, {4, 4})), std::nullopt);
  EXPECT_EQ(disagreement(gather(0, {4, 4}), gather(1, {4, 5})),
            "device 3 has gather h, receive [4, 4]; device 7 has gather h, receive [4, 5]");
  Exchange other = gather(1, {4, 4});
  other.name = "gather w";
  EXPECT_EQ(disagreement(gather(0, {4, 4}), other), "device 3 has gather h; device 7 has gather w");
  other = gather(1, {4, 4});
  other.kind = CommunicationKind::kAllReduce;
  EXPECT_THAT(*disagreement(gather(0, {4, 4}), other), HasSubstr("gather h, all_reduce"));
}

// Each pair has its own length; lengths of others may differ.
TEST(Disagreement, AllToAllComparesMessages) {
  Exchange a = gather(0, {1, 6}), b = gather(1, {2, 3});
  a.kind = b.kind = CommunicationKind::kAllToAll;
  a.send = {1, 2};
  b.send = {6, 3};
  EXPECT_EQ(disagreement(a, b), std::nullopt);
  b.send[0] = 5;
  EXPECT_EQ(disagreement(a, b),
            "device 7 sends 5 elements of gather h to device 3, which expects 6");
}

}  // namespace
}  // namespace medley
