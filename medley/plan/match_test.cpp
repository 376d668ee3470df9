#include "medley/plan/match.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace medley {
namespace {

TEST(Match, StarStandsForAnyRun) {
  EXPECT_TRUE(matches("h.*.mlp/mm#0", "h.11.mlp/mm#0"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*", "a"));
  EXPECT_TRUE(matches("*a*b*", "xxaxbx"));
  EXPECT_TRUE(matches("*ab", "aab"));                // the run ends after its first chance
  EXPECT_FALSE(matches("h.*.mlp", "h.0.mlp/mm#0"));  // the whole name has to match
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("a?", "ab"));  // no other wildcards
}

TEST(Match, ManyStarsTakeNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern, std::string(2000, 'a') + "b"));
}

using Choices = std::map<std::string, std::string>;

std::string found(const Choices& choices, const std::string& name) {
  const std::string* text = ChoiceFinder(choices).find(name);
  return text ? *text : "nothing";
}

TEST(ChoiceFinder, ExactBeatsLongerBeatsShorter) {
  const Choices choices = {
      {"*", "any"}, {"h.*", "block"}, {"h.*.weight", "weights"}, {"h.0.weight", "this one"}};
  EXPECT_EQ(found(choices, "h.0.weight"), "this one");
  EXPECT_EQ(found(choices, "h.1.weight"), "weights");
  EXPECT_EQ(found(choices, "h.1.bias"), "block");
  EXPECT_EQ(found(choices, "wte"), "any");
  EXPECT_EQ(ChoiceFinder(choices).find_entry("h.1.bias")->first, "h.*");
  EXPECT_EQ(found({{"h.*", "block"}}, "wte"), "nothing");
}

// Stars do not count; ties go to the alphabetically later one.
TEST(ChoiceFinder, TiesAreSettled) {
  EXPECT_EQ(found({{"a*", "head"}, {"*b", "tail"}}, "ab"), "head");
  EXPECT_EQ(found({{"***b", "stars"}, {"a*c*", "two"}}, "acb"), "two");
}

// Returns the best entry by trying all.
const Choices::value_type* find_by_trying(const Choices& choices, const std::string& name) {
  if (auto exact = choices.find(name); exact != choices.end()) return &*exact;
  const Choices::value_type* best = nullptr;
  std::ptrdiff_t best_length = -1;
  for (const auto& choice : choices) {
    const std::string& pattern = choice.first;
    const auto length =
        std::count_if(pattern.begin(), pattern.end(), [](char c) { return c != '*'; });
    if (length >= best_length && matches(pattern, name)) {
      best = &choice;
      best_length = length;
    }
  }
  return best;
}

// The finder indexes patterns by the text after the last "/"; its result equals that of trying all.
TEST(ChoiceFinder, FindsWhatTryingAllFinds) {
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
    Choices choices;
    for (int i = 0; i < 20; ++i) choices[draw(true)] = std::to_string(i);
    const ChoiceFinder finder(choices);
    for (int i = 0; i < 20; ++i) {
      const std::string name = draw(false);
      EXPECT_EQ(finder.find_entry(name), find_by_trying(choices, name)) << name;
    }
  }
}

}  // namespace
}  // namespace medley
