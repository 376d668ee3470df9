#include "medley/plan/match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace medley {
namespace {

TEST(Match, StarStandsForAnyRun) {
  EXPECT_TRUE(matches("h.*.mlp/mm#0", "h.11.mlp/mm#0"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*", "a"));
  EXPECT_TRUE(matches("*a*b*", "xxaxbx"));
  EXPECT_TRUE(matches("*ab", "aab"));                // the run ends later than its first chance
  EXPECT_FALSE(matches("h.*.mlp", "h.0.mlp/mm#0"));  // the whole name is described
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("a?", "ab"));  // no other wildcards
}

TEST(Match, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern, std::string(2000, 'a') + "b"));
}

TEST(FindChoice, ExactBeatsLongerBeatsShorter) {
  const std::map<std::string, std::string> choices = {
      {"*", "any"}, {"h.*", "block"}, {"h.*.weight", "weights"}, {"h.0.weight", "this one"}};
  EXPECT_EQ(*find_choice(choices, "h.0.weight"), "this one");
  EXPECT_EQ(*find_choice(choices, "h.1.weight"), "weights");
  EXPECT_EQ(*find_choice(choices, "h.1.bias"), "block");
  EXPECT_EQ(*find_choice(choices, "wte"), "any");
  EXPECT_EQ(*find_key(choices, "h.1.bias"), "h.*");
  EXPECT_EQ(find_choice({{"h.*", "block"}}, "wte"), nullptr);
}

// Stars do not count, and the later in the alphabet wins among equals.
TEST(FindChoice, TiesAreSettled) {
  EXPECT_EQ(*find_choice({{"a*", "head"}, {"*b", "tail"}}, "ab"), "head");
  EXPECT_EQ(*find_choice({{"***b", "stars"}, {"a*c*", "two"}}, "acb"), "two");
}

}  // namespace
}  // namespace medley
