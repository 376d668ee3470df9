#include "medley/plan/texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace medley {
namespace {

using ::testing::ElementsAre;

TEST(PlacementText, PrintsWhatItParsed) {
  for (const char* text : {"R", "P", "S(0, rows)", "S(1.2, heads)", "R x S(0, a-b)", "P x R x R"})
    EXPECT_EQ(print(parse_placement_text(text).value()), text);
  EXPECT_THAT(parse_placement_text("S(1.2, heads)").value(),
              ElementsAre(PlacementText{PlacementText::Kind::kSharded, 1, 2, "heads"}));
  EXPECT_EQ(print(parse_placement_text("S(1.0, heads)").value()), "S(1, heads)");
}

TEST(PlacementText, OtherTextsAreNoPlacement) {
  for (const char* text : {"",
                           "r",
                           "R ",
                           "S",
                           "S()",
                           "S(0)",
                           "S(0,rows)",
                           "S(-1, rows)",
                           "S(0, 1)",
                           "S(01, a)",
                           "S(0., a)",
                           "S(0.-1, a)",
                           "R xR",
                           "R x ",
                           "S(0, x)",
                           "S(99999999999, a)",
                           "S(0, a) "})
    EXPECT_FALSE(parse_placement_text(text)) << text;
}

TEST(ChoiceText, PrintsWhatItParsed) {
  for (const char* text : {"replicate",
                           "linear {0}",
                           "linear {0+12}",
                           "m rows",
                           "n.1 heads",
                           "composite d even",
                           "composite d.1 even",
                           "*",
                           "* x n heads",
                           "x' rows",
                           "n rows x replicate",
                           "x rows x x even"})
    EXPECT_EQ(print(parse_choice_text(text).value()), text);
}

TEST(ChoiceText, OtherTextsAreNoChoice) {
  for (const char* text : {"",
                           "replicated",
                           "linear",
                           "linear {}",
                           "linear {a}",
                           "linear 0",
                           "m",
                           "m x",
                           "m rows even",
                           "composite d",
                           "0 rows",
                           "m. rows",
                           "' rows",
                           "composite composite d a"})
    EXPECT_FALSE(parse_choice_text(text)) << text;
}

}  // namespace
}  // namespace medley
