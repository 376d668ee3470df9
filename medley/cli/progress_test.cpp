#include "medley/cli/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace medley {
namespace {

TEST(Progress, StaysSilentForTwoSecondsAndClearsItsLine) {
  std::ostringstream terminal;
  ManualClock clock;
  {
    Progress progress(&terminal, clock);
    progress.at("pricing", 1, 3);
    EXPECT_EQ(terminal.str(), "");
    clock.advance({2'000'000'000});
    progress.at("pricing", 2, 3);
    EXPECT_EQ(terminal.str(), "\r\x1b[Kpricing: 2 of 3");
  }
  EXPECT_EQ(terminal.str(), "\r\x1b[Kpricing: 2 of 3\r\x1b[K");
}

TEST(Progress, WithoutATerminalThereIsNone) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    ManualClock clock;
    Progress progress(nullptr, clock);
    clock.advance({3'000'000'000});
    progress.at("pricing", 1, 3);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace medley
