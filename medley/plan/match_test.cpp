#include "medley/plan/match.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <random>

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

// The finder sorts patterns by what follows the last "/"; the answer is that of trying all.
TEST(ChoiceFinder, FindsWhatFindChoiceFinds) {
  const std::vector<std::string> pieces{"a", "b", "*", "/", "a/", ".", "0"};
  std::mt19937 random(7);
  const auto draw = [&](bool star) {
    std::string text;
    for (int i = 0; i < 5; ++i) {
      const std::string& piece = pieces[random() % pieces.size()];
      if (star || piece != "*") text += piece;
    }
    return text;
  };
  for (int trial = 0; trial < 200; ++trial) {
    std::map<std::string, std::string> choices;
    for (int i = 0; i < 20; ++i) choices[draw(true)] = std::to_string(i);
    const ChoiceFinder finder(choices);
    for (int i = 0; i < 20; ++i) {
      const std::string name = draw(false);
      EXPECT_EQ(finder.find(name), find_choice(choices, name)) << name;
    }
  }
}

}  // namespace
}  // namespace medley
