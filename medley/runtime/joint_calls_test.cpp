#include "medley/runtime/joint_calls.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

TEST(JointCalls, CountOutermostOnes) {
  JointCalls calls;
  EXPECT_EQ(calls.last(), JointCall{});
  calls.begin("save_model()");
  calls.begin("parameters()");
  calls.end();
  EXPECT_EQ(calls.last(), (JointCall{1, true, "save_model()"}));
  calls.end();
  calls.begin("step()");
  calls.end();
  EXPECT_EQ(calls.last(), (JointCall{2, false, "step()"}));
  EXPECT_EQ(calls.name(1), "save_model()");
  EXPECT_EQ(calls.name(3), std::nullopt);
}

// A run makes millions.
TEST(JointCalls, ForgetOldOnes) {
  JointCalls calls;
  for (int i = 0; i < 1000; ++i) {
    calls.begin(std::to_string(i + 1));
    calls.end();
  }
  EXPECT_EQ(calls.name(1), std::nullopt);
  EXPECT_EQ(calls.name(990), "990");
  EXPECT_EQ(calls.name(1000), "1000");
}

TEST(JointCalls, AreText) {
  for (const JointCall& call :
       {JointCall{}, JointCall{7, true, "step()"}, JointCall{8, false, "a b"}})
    EXPECT_EQ(parse_joint_call(to_text(call)), call);
  for (const char* text : {"", "finished", "7", "7 1"})
    EXPECT_EQ(parse_joint_call(text), std::nullopt);
}

}  // namespace
}  // namespace medley
