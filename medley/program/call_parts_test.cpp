#include "medley/program/call_parts.h"

#include <gmock/gmock.h>

#include <functional>

#include "medley/base/error.h"
#include "medley/program/verify_parts.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using enum FunctionKind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kToTheEnd = Call::kToTheEnd;

// Forward gathers, in step 2 of four; backward has no wait.
LoweredStage gathering(int microbatches) {
  LoweredStage stage = data_parallel_program({3, 1}, microbatches).program.stages[0];
  stage.calls.clear();
  return stage;
}

LoweredStage woven(int microbatches) {
  LoweredStage stage = gathering(microbatches);
  add_calls(stage, order_interleaved(2, microbatches), microbatches);
  return stage;
}

TEST(AddCalls, PartsTakeTurns) {
  const LoweredStage stage = woven(3);
  EXPECT_THAT(stage.calls,
              ElementsAre(Call{kForward, 0, 0, 2},
                          Call{kForward, 1, 0, 2},
                          Call{kForward, 0, 2, kToTheEnd},
                          Call{kForward, 1, 2, kToTheEnd},
                          Call{kBackward, 0},
                          Call{kBackward, 1},
                          Call{kForward, 2},
                          Call{kBackwardLast, 2},
                          Call{kUpdate, 0}));
  EXPECT_EQ(steps_of(stage, stage.calls[1]).size(), 2u);
  EXPECT_EQ(&steps_of(stage, stage.calls[2])[0], &find_function(stage, kForward).steps[2]);
  EXPECT_NO_THROW(verify_turns(stage, "stage 0"));
}

const std::vector<Call> kWhole{
    {kForward, 0}, {kForward, 1}, {kBackward, 0}, {kBackwardLast, 1}, {kUpdate, 0}};

TEST(AddCalls, OneMicrobatchStaysAsItIs) {
  LoweredStage stage = gathering(2);
  add_calls(stage, order_calls({2}, 2)[0], 2);
  EXPECT_EQ(stage.calls, kWhole);
}

// A micro-batch leaves a buffer's value to the next one.
TEST(AddCalls, CallThatReplacesValuesStaysWhole) {
  LoweredStage stage = gathering(2);
  stage.functions[0].assigns.push_back({1, 0});
  add_calls(stage, order_interleaved(2, 2), 2);
  EXPECT_EQ(stage.calls, kWhole);
}

// Without sends, no part precedes another.
TEST(AddCalls, BackwardWithoutTransfersIsOnePart) {
  LoweredStage stage = gathering(2);
  add_calls(stage, with_deferred_weights(order_calls({2}, 2), {1})[0], 2);
  EXPECT_EQ(stage.calls, kWhole);
}

TEST(VerifyTurns, RefusesWhatWouldDoSomethingElse) {
  struct Case {
    std::string refusal;
    std::function<void(LoweredStage&)> spoil;
  };
  const std::vector<Case> cases{
      {"found steps 0 to 9, expected some of 4", [](LoweredStage& s) { s.calls[0].end = 9; }},
      {"found steps from 2 on, expected 1", [](LoweredStage& s) { s.calls[0].end = 1; }},
      {"forward 0: found no end of it",
       [](LoweredStage& s) { s.calls.erase(s.calls.begin() + 2, s.calls.end()); }},
      {"backward 2: found among the parts of forward 0",
       [](LoweredStage& s) { std::swap(s.calls[2], s.calls[7]); }},
      {"waits for gather h, which micro-batch 0 has posted before",
       [](LoweredStage& s) { std::swap(s.calls[2], s.calls[3]); }},
      {"expected what replaces values in one",
       [](LoweredStage& s) {
         s.functions[0].assigns.push_back({1, 0});
       }},
  };
  for (const Case& each : cases) {
    LoweredStage stage = woven(3);
    each.spoil(stage);
    try {
      verify_turns(stage, "stage 0");
      ADD_FAILURE() << "accepted: " << each.refusal;
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kUs);
      EXPECT_THAT(error.what(), HasSubstr(each.refusal));
    }
  }
}

// The sum of the loss adds one micro-batch after the other.
TEST(VerifyTurns, RefusesSumsInAnotherOrder) {
  LoweredStage stage = gathering(2);
  stage.calls = {{kForward, 0, 0, 1},
                 {kForward, 1, 0, 1},
                 {kForward, 1, 1, kToTheEnd},
                 {kForward, 0, 1, kToTheEnd}};
  try {
    verify_turns(stage, "stage 0");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("of the step behind forward 1, expected before it"));
  }
}

}  // namespace
}  // namespace medley
