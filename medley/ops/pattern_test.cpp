#include "medley/ops/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/error.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of(std::string_view pattern) {
  try {
    parse_pattern(pattern);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    return error.what();
  }
  return "no error";
}

TEST(Pattern, NamesTheLabelsOfEveryDim) {
  const Pattern mm = parse_pattern("m k, k n -> m n");
  ASSERT_EQ(mm.operands.size(), 2u);
  ASSERT_EQ(mm.results.size(), 1u);
  EXPECT_THAT(mm.operands[1].dims[0].labels, ElementsAre("k"));
  EXPECT_THAT(mm.labels, ElementsAre(PatternLabel{"m"}, PatternLabel{"k"}, PatternLabel{"n"}));
}

// A mark counts at any occurrence.
TEST(Pattern, UnitesMarks) {
  const Pattern pattern = parse_pattern("a b~ c% -> a! b c");
  EXPECT_TRUE(pattern.labels[0].locked);
  EXPECT_TRUE(pattern.labels[1].select);
  EXPECT_TRUE(pattern.labels[2].composite);
}

TEST(Pattern, ReadsEveryKindOfTensor) {
  const Pattern pattern = parse_pattern("#.., (g r)& x..!?, _, 1 -> 1, .. =g ^r");
  EXPECT_TRUE(pattern.operands[0].shape_only);
  EXPECT_EQ(pattern.operands[0].dims[0].kind, PatternDim::Kind::kDots);
  EXPECT_TRUE(pattern.operands[1].optional);
  EXPECT_TRUE(pattern.operands[1].dims[0].broadcast);
  EXPECT_THAT(pattern.operands[1].dims[0].labels, ElementsAre("g", "r"));
  EXPECT_THAT(pattern.operands[1].dims[1].labels, ElementsAre("x"));
  EXPECT_TRUE(pattern.operands[2].any);
  EXPECT_EQ(pattern.operands[3].dims[0].kind, PatternDim::Kind::kOne);
  EXPECT_THAT(pattern.results[1].absent,
              ElementsAre(std::pair<std::string, Absent>("g", Absent::kUnaffected),
                          std::pair<std::string, Absent>("r", Absent::kMax)));
}

TEST(Pattern, FactoryHasNoOperands) { EXPECT_THAT(parse_pattern("-> .. ").operands, IsEmpty()); }

TEST(Pattern, ErrorsNameThePlace) {
  EXPECT_THAT(error_of("m k, k n"), HasSubstr("column 9: expected '->'"));
  EXPECT_THAT(error_of("m ( -> m"), HasSubstr("column 5: expected a label"));
  EXPECT_THAT(error_of("m () -> m"), HasSubstr("expected a label"));
  EXPECT_THAT(error_of(".. m .. -> m"), HasSubstr("expected one '..' per tensor"));
  EXPECT_THAT(error_of("m -> m m -> m"), HasSubstr("column 10: expected the end"));
  EXPECT_THAT(error_of("m -> m =k"), HasSubstr("expected a label of the operands instead of k"));
  EXPECT_THAT(error_of("m _ -> m"), HasSubstr("expected no dim beside '_'"));
  EXPECT_THAT(error_of("m 2 -> m"), HasSubstr("column 3: expected a label"));
}

TEST(Linear, ReadsGroups) {
  EXPECT_THAT(parse_linear(""), IsEmpty());
  EXPECT_THAT(parse_linear("{0}{1}"), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(parse_linear("{0+2}{11}"), ElementsAre(ElementsAre(0, 2), ElementsAre(11)));
}

TEST(Linear, RefusesOtherText) {
  for (std::string_view text : {"0", "{}", "{0", "{0+}", "{a}", "{0}}"})
    EXPECT_THROW(parse_linear(text), Error) << text;
}

}  // namespace
}  // namespace medley
