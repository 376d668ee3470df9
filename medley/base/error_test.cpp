#include "medley/base/error.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Unprintable {
  int value;
  bool operator==(const Unprintable&) const = default;
};

std::string message_of_failed_check(void (*check)()) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    return error.what();
  }
  ADD_FAILURE() << "the check passed";
  return "";
}

TEST(Check, NamesThePlaceAndTheCondition) {
  EXPECT_THAT(message_of_failed_check([] { MEDLEY_CHECK(1 > 2); }),
              AllOf(HasSubstr("medley/base/error_test.cpp:"), HasSubstr("check failed: 1 > 2")));
}

TEST(Check, EqPrintsBothValues) {
  EXPECT_THAT(message_of_failed_check([] {
                std::string name = "x";
                MEDLEY_CHECK_EQ(name, "y");
              }),
              HasSubstr("name == \"y\": x vs y"));
}

TEST(Check, EqTakesTypesThatCannotBePrinted) {
  EXPECT_THAT(message_of_failed_check([] { MEDLEY_CHECK_EQ(Unprintable{1}, Unprintable{2}); }),
              HasSubstr("(unprintable)"));
}

TEST(Check, SaysNothingWhenTheConditionHolds) {
  EXPECT_NO_THROW(MEDLEY_CHECK(1 < 2));
  EXPECT_NO_THROW(MEDLEY_CHECK_EQ(2, 1 + 1));
}

}  // namespace
}  // namespace medley
