#include "medley/elastic/leader.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Kind = Order::Kind;

constexpr Nanoseconds ms(int64_t count) { return {count * 1'000'000}; }

std::vector<Kind> kinds(const std::vector<Order>& orders) {
  std::vector<Kind> kinds;
  for (const Order& order : orders) kinds.push_back(order.kind);
  return kinds;
}

StepLeft before(const std::string& device) { return {device, 4, Reached::kBefore}; }

// Three training devices; c is lost at 1 ms, and a and b have reported.
Leader agreed() {
  Leader leader({"a", "b", "c"});
  leader.lost("c", "was killed by SIGKILL", ms(1));
  EXPECT_THAT(kinds(leader.next(ms(1))), ElementsAre(Kind::kStop));
  leader.reported(0, before("a"), 0, ms(2));
  EXPECT_THAT(leader.next(ms(2)), IsEmpty());
  leader.reported(0, before("b"), 0, ms(3));
  return leader;
}

TEST(Leader, OthersBeginAGenerationWithoutTheLostDevice) {
  Leader leader = agreed();
  const std::vector<Order> orders = leader.next(ms(3));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_EQ(orders[0].agreement.generation, 1);
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a", "b"));
  EXPECT_EQ(orders[0].agreement.decision.step, 3);
  leader.built(1, "a", ms(4));
  EXPECT_THAT(leader.next(ms(4)), IsEmpty());
  leader.built(1, "b", ms(5));
  EXPECT_THAT(kinds(leader.next(ms(5))), ElementsAre(Kind::kGoOn));
  EXPECT_TRUE(leader.runs());
}

TEST(Leader, SilentMemberIsFenced) {
  Leader leader({"a", "b", "c"});
  leader.failed(0, "a: connection closed", "", ms(0));
  leader.next(ms(0));
  leader.reported(0, before("a"), 0, ms(1));
  leader.reported(0, before("b"), 0, ms(1));
  EXPECT_THAT(leader.next(ms(2000)), IsEmpty());
  const std::vector<Order> orders = leader.next(ms(2001));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kFence, Kind::kBegin));
  EXPECT_EQ(orders[0].device, "c");
}

// Others have waited for it already.
TEST(Leader, SuspectHasLittleTimeToAnswer) {
  Leader leader({"a", "b"});
  leader.failed(0, "b: no sign of life", "b", ms(0));
  leader.next(ms(0));
  leader.reported(0, before("a"), 0, ms(1));
  EXPECT_THAT(kinds(leader.next(ms(301))), ElementsAre(Kind::kFence, Kind::kBegin));
}

// It is in its script, which may take longer, but not forever.
TEST(Leader, MemberWithHeartbeatHasTimeToAnswer) {
  LeaderOptions options;
  options.busy = ms(10'000);
  Leader leader({"a", "b"}, options);
  leader.failed(0, "b: no sign of life", "b", ms(0));
  leader.next(ms(0));
  leader.reported(0, before("a"), 0, ms(1));
  for (int64_t at = 250; at <= 10'000; at += 250) {
    leader.lives("b", ms(at));
    EXPECT_THAT(leader.next(ms(at)), IsEmpty());
  }
  EXPECT_THAT(kinds(leader.next(ms(10'001))), ElementsAre(Kind::kFence, Kind::kBegin));
}

TEST(Leader, MemberThatStopsItsHeartbeatIsFenced) {
  Leader leader({"a", "b"});
  leader.failed(0, "a: connection closed", "", ms(0));
  leader.next(ms(0));
  leader.reported(0, before("a"), 0, ms(1));
  leader.lives("b", ms(1500));
  EXPECT_THAT(leader.next(ms(3500)), IsEmpty());
  EXPECT_THAT(kinds(leader.next(ms(3501))), ElementsAre(Kind::kFence, Kind::kBegin));
}

TEST(Leader, LossDuringABuildBeginsAnotherGeneration) {
  Leader leader = agreed();
  leader.next(ms(3));
  leader.built(1, "a", ms(4));
  leader.lost("b", "was killed by SIGKILL", ms(5));
  EXPECT_THAT(kinds(leader.next(ms(5))), ElementsAre(Kind::kStop));
  // It has the state of the first generation's plan, or that of the second.
  leader.reported(1, {"a", 3, Reached::kDone}, 1, ms(6));
  const std::vector<Order> orders = leader.next(ms(6));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_EQ(orders[0].agreement.generation, 2);
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a"));
  EXPECT_EQ(orders[0].agreement.states.at("a"), 1);
}

TEST(Leader, ALossWhileOthersAreAwaitedIsNotWaitedFor) {
  Leader leader({"a", "b", "c"});
  leader.lost("c", "was killed by SIGKILL", ms(0));
  leader.next(ms(0));
  leader.reported(0, before("a"), 0, ms(1));
  leader.lost("b", "was killed by SIGKILL", ms(2));
  const std::vector<Order> orders = leader.next(ms(2));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a"));
}

TEST(Leader, OlderGenerationIsIgnored) {
  Leader leader = agreed();
  leader.next(ms(3));
  leader.failed(0, "a: connection closed", "", ms(4));
  leader.built(0, "a", ms(4));
  leader.built(0, "b", ms(4));
  EXPECT_THAT(leader.next(ms(4)), IsEmpty());
}

TEST(Leader, AProcessThatWasStartedAgainIsWaitedForAndHasNoState) {
  Leader leader = agreed();
  leader.expect("c", ms(3));
  EXPECT_THAT(leader.next(ms(4)), IsEmpty());
  leader.arrived("c", ms(5));
  const std::vector<Order> orders = leader.next(ms(5));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a", "b", "c"));
  EXPECT_EQ(orders[0].agreement.states.at("c"), -1);
}

TEST(Leader, AProcessThatDoesNotComeIsGivenUp) {
  Leader leader = agreed();
  leader.expect("c", ms(3));
  const std::vector<Order> orders = leader.next(ms(1) + LeaderOptions{}.restart + ms(1));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a", "b"));
}

TEST(Leader, MemberLateToBuildIsFenced) {
  Leader leader = agreed();
  leader.next(ms(3));
  leader.built(1, "a", ms(4));
  EXPECT_THAT(kinds(leader.next(ms(4) + LeaderOptions{}.build)),
              ElementsAre(Kind::kFence, Kind::kStop));
}

TEST(Leader, ATornStepIsALossOfItsDevice) {
  Leader leader({"a", "b"});
  leader.failed(0, "b: out of memory", "", ms(0));
  leader.next(ms(0));
  leader.reported(0, {"a", 4, Reached::kAtCommit}, 0, ms(1));
  leader.reported(0, {"b", 4, Reached::kTorn}, 0, ms(1));
  EXPECT_THAT(kinds(leader.next(ms(1))), ElementsAre(Kind::kFence, Kind::kBegin));
}

TEST(Leader, DepartedMemberIsNotWaitedFor) {
  Leader leader({"a", "b"});
  leader.left("b");
  EXPECT_THAT(leader.next(ms(0)), IsEmpty());
  leader.failed(0, "a: connection closed", "", ms(1));
  leader.next(ms(1));
  leader.reported(0, before("a"), 0, ms(2));
  const std::vector<Order> orders = leader.next(ms(2));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
  EXPECT_THAT(orders[0].agreement.members, ElementsAre("a"));
}

// b was lost while all went back from step 4 to step 1, or loaded a checkpoint of it: a has, c has
// not.
TEST(Leader, MemberThatHasNotRolledBackHasNoState) {
  for (int StepLeft::*times : {&StepLeft::back, &StepLeft::loads}) {
    Leader leader({"a", "b", "c"});
    leader.failed(0, "c: connection closed", "", ms(0));
    leader.next(ms(0));
    for (const char* device : {"a", "b", "c"}) leader.reported(0, before(device), 0, ms(1));
    leader.next(ms(1));
    leader.lost("b", "was killed by SIGKILL", ms(2));
    leader.next(ms(2));
    StepLeft gone_back{"a", 1, Reached::kDone};
    gone_back.*times = 1;
    leader.reported(1, gone_back, 1, ms(3));
    leader.reported(1, {"c", 4, Reached::kDone}, 0, ms(3));
    const std::vector<Order> orders = leader.next(ms(3));
    ASSERT_THAT(kinds(orders), ElementsAre(Kind::kBegin));
    EXPECT_EQ(orders[0].agreement.decision.step, 1);
    EXPECT_THAT(orders[0].agreement.states, ElementsAre(Pair("a", 1), Pair("c", -1)));
  }
}

TEST(Leader, RunWithoutMembersEnds) {
  Leader leader({"a"});
  leader.lost("a", "was killed by SIGKILL", ms(0));
  const std::vector<Order> orders = leader.next(ms(0));
  ASSERT_THAT(kinds(orders), ElementsAre(Kind::kStop, Kind::kEnd));
  EXPECT_THAT(orders[1].text, HasSubstr("no device"));
  EXPECT_THAT(leader.next(ms(1)), IsEmpty());
}

// A failure that repeats without a loss would repeat forever.
TEST(Leader, AStepThatFailsAgainAndAgainEndsTheRun) {
  Leader leader({"a"});
  std::vector<Kind> last;
  for (int generation = 0; generation < 4 && (last.empty() || last.back() != Kind::kEnd);
       ++generation) {
    leader.failed(generation, "a: out of memory", "", ms(generation));
    leader.next(ms(generation));
    leader.reported(generation, before("a"), 0, ms(generation));
    last = kinds(leader.next(ms(generation)));
    leader.built(generation + 1, "a", ms(generation));
    if (last.back() != Kind::kEnd) leader.next(ms(generation));
  }
  EXPECT_THAT(last, ElementsAre(Kind::kEnd));
}

TEST(Agreement, LeavingMemberIsNotPlannedForAndAMemberWithStatePlans) {
  Agreement agreement{1, {"a", "b", "c"}, {{"a", -1}, {"b", 0}, {"c", 0}}, {4, {}}};
  EXPECT_THAT(staying(agreement), ElementsAre("a", "b", "c"));
  EXPECT_EQ(eldest(agreement), "b");
  agreement.leaving = {"b"};
  EXPECT_THAT(staying(agreement), ElementsAre("a", "c"));
  EXPECT_EQ(eldest(agreement), "b");
}

}  // namespace
}  // namespace medley
