#include "medley/elastic/decision.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::HasSubstr;

StepLeft left(const std::string& device, int64_t step, Reached reached) {
  StepLeft result{device, step, reached};
  if (reached == Reached::kCommitted || reached == Reached::kDone) result.committed = 2.5;
  return result;
}

StepLeft spreading(StepLeft left) {
  left.spreads = true;
  return left;
}

Decision decided(const std::vector<StepLeft>& survivors) {
  const auto result = decide(survivors);
  EXPECT_TRUE(std::holds_alternative<Decision>(result));
  return std::get<Decision>(result);
}

TEST(Decision, UncommittedStepIsRepeated) {
  const StepLeft early = left("a", 4, Reached::kBefore), late = left("b", 4, Reached::kAtCommit);
  EXPECT_EQ(decided({early, late}).step, 3);
  EXPECT_EQ(catch_up(late, 3), (Catching{false, 1}));
}

// The last contributor may have been lost: the others lack only the scalar.
TEST(Decision, AStepThatOneHasCommittedIsFinishedByAll) {
  const StepLeft first = left("a", 4, Reached::kCommitted), last = left("b", 4, Reached::kAtCommit);
  EXPECT_EQ(decided({first, last}), (Decision{4, 2.5}));
  EXPECT_EQ(catch_up(first, 4), (Catching{true, 0}));
  EXPECT_EQ(catch_up(last, 4), (Catching{true, 0}));
}

TEST(Decision, DeviceInTheNextStepProvesTheCommit) {
  StepLeft ahead = left("a", 5, Reached::kBefore);
  ahead.committed = 2.5;  // of step 4
  EXPECT_EQ(decided({ahead, left("b", 4, Reached::kAtCommit)}), (Decision{4, 2.5}));
  EXPECT_EQ(catch_up(ahead, 4), (Catching{false, 1}));
}

TEST(Decision, ACommitThatIsSpreadOnlyHereAndThereIsTakenBackByAll) {
  const StepLeft done = spreading(left("a", 4, Reached::kDone));
  const StepLeft torn = spreading(left("b", 4, Reached::kCommitted));
  EXPECT_EQ(decided({done, torn}).step, 3);
  EXPECT_EQ(catch_up(done, 3), (Catching{false, 1}));
  EXPECT_EQ(catch_up(torn, 3), (Catching{false, 1}));
  const StepLeft ahead = spreading(left("c", 5, Reached::kBefore));
  EXPECT_EQ(decided({ahead, torn}).step, 3);
  EXPECT_EQ(catch_up(ahead, 3), (Catching{false, 2}));
}

// A device without updates and waits may be anywhere.
TEST(Decision, DeviceWithoutCommitsFollows) {
  StepLeft frozen = left("b", 4, Reached::kBefore);
  frozen.commits = false;
  EXPECT_EQ(decided({left("a", 4, Reached::kCommitted), frozen}), (Decision{4, 2.5}));
  EXPECT_EQ(decided({left("a", 4, Reached::kBefore), frozen}).step, 3);
}

TEST(Decision, BeforeTheFirstStepThereIsNothingToKeep) {
  EXPECT_EQ(decided({left("a", -1, Reached::kDone), left("b", 0, Reached::kBefore)}).step, -1);
}

TEST(Decision, StepsThatCannotMeetAreASentence) {
  const auto no = decide({left("a", 6, Reached::kDone), left("b", 4, Reached::kBefore)});
  ASSERT_TRUE(std::holds_alternative<std::string>(no));
  EXPECT_THAT(std::get<std::string>(no), HasSubstr("a: step 6, done; b: step 4, before"));
}

TEST(Decision, TwoResultsOfOneCommitAreASentence) {
  StepLeft other = left("b", 4, Reached::kCommitted);
  other.committed = 2.25;
  const auto no = decide({left("a", 4, Reached::kCommitted), other});
  ASSERT_TRUE(std::holds_alternative<std::string>(no));
  EXPECT_EQ(std::get<std::string>(no), "the commit of step 4 gave 2.5 and 2.25");
}

}  // namespace
}  // namespace medley
