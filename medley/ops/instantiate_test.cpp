#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "medley/graph/text.h"
#include "medley/ops/instance.h"
#include "medley/ops/one_op.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

std::string instance_of(const std::vector<std::string>& inputs, const std::string& op) {
  const Graph graph = one_op(inputs, op);
  const auto instance = instantiate(graph, graph.ops[0]);
  return instance ? to_string(*instance, graph.symbols) : "none";
}

TEST(Instantiate, Contraction) {
  EXPECT_EQ(instance_of({"f32[b, 16]", "f32[16, 8]"}, "aten.mm.default(%0, %1) : f32[b, 8]"),
            "m=b k=16, k n=8 -> m n {0}{1}");
}

// Under a split k every device would add the bias.
TEST(Instantiate, AddmmLocksTheContractedDim) {
  EXPECT_EQ(instance_of({"f32[8]", "f32[b, 16]", "f32[16, 8]"},
                        "aten.addmm.default(%0, %1, %2, 1, 1) : f32[b, 8]"),
            "n=8, m=b k=16!, k n -> m n {0+1}{0+2}");
}

TEST(Instantiate, BroadcastDimsCarryNoLabel) {
  EXPECT_EQ(instance_of({"f32[b, 1, 8]", "f32[4, 8]"}, "aten.mul.Tensor(%0, %1) : f32[b, 4, 8]"),
            "d0=b 1 d2=8, d1=4 d2 -> d0 d1 d2 {0}{1}");
}

// Two dims of equal size are two labels: [b, b] of an in-batch contrastive loss.
TEST(Instantiate, EqualSizesAreNotOneLabel) {
  EXPECT_EQ(instance_of({"f32[b, 8]", "f32[8, b]"}, "aten.mm.default(%0, %1) : f32[b, b]"),
            "m=b k=8, k n=b -> m n {0}{1}");
}

TEST(Instantiate, RefusesShapesThatDoNotFit) {
  EXPECT_EQ(instance_of({"f32[b, 16]", "f32[8, 8]"}, "aten.mm.default(%0, %1) : f32[b, 8]"),
            "none");
  EXPECT_EQ(instance_of({"f32[b]"}, "aten.no_such_op.default(%0) : f32[b]"), "none");
}

TEST(Instantiate, LinearityFollowsArguments) {
  const auto linear = [](const std::string& op) {
    const std::string text = instance_of({"f32[b]", "f32[b]", "bool[b]", "i64[b]"}, op);
    return text.find('{') == std::string::npos ? "" : text.substr(text.find('{'));
  };
  EXPECT_EQ(linear("aten.add.Tensor(%0, %1, 1) : f32[b]"), "{0+1}");
  EXPECT_EQ(linear("aten.add.Tensor(%0, 1.0, 1) : f32[b]"), "");
  EXPECT_EQ(linear("aten.add.Tensor(%0, 0, 1) : f32[b]"), "{0}");
  EXPECT_EQ(linear("aten.mul.Tensor(%0, 3.0) : f32[b]"), "{0}");
  EXPECT_EQ(linear("aten.div.Tensor(%0, %1) : f32[b]"), "{0}");
  EXPECT_EQ(linear("aten.pow.Tensor_Scalar(%0, 1) : f32[b]"), "{0}");
  EXPECT_EQ(linear("aten.pow.Tensor_Scalar(%0, 2) : f32[b]"), "");
  EXPECT_EQ(linear("aten.masked_fill.Scalar(%0, %2, 0) : f32[b]"), "{0}");
  EXPECT_EQ(linear("aten.masked_fill.Scalar(%0, %2, -inf) : f32[b]"), "");
  EXPECT_EQ(linear("aten.where.self(%2, %0, %1) : f32[b]"), "{1+2}");
  EXPECT_EQ(linear("aten._to_copy.default(%0, bf16, none, none, none, false, none) : bf16[b]"),
            "{0}");
  EXPECT_EQ(linear("aten._to_copy.default(%2, f32, none, none, none, false, none) : f32[b]"), "");
  EXPECT_EQ(linear("aten._to_copy.default(%3, f32, none, none, none, false, none) : f32[b]"),
            "{0}");
  EXPECT_EQ(linear("aten.constant_pad_nd.default(%0, [1, 1], 0) : f32[b*2]"), "{0}");
  EXPECT_EQ(linear("aten.constant_pad_nd.default(%0, [1, 1], 1) : f32[b*2]"), "");
}

// --- views ---------------------------------------------------------------------------------------

std::string view_of(const std::string& from, const std::string& to) {
  return instance_of({"f32" + from}, "aten.view.default(%0, " + to + ") : f32" + to);
}

TEST(View, RefinesFusedDims) {
  EXPECT_EQ(view_of("[b*32, 192]", "[b, 32, 3, 4, 16]"),
            "(d0=b d1=32) (d2=3 d3=4 d4=16) -> d0 d1 d2 d3 d4 {0}");
  EXPECT_EQ(view_of("[b, 32, 4, 16]", "[b*32, 64]"),
            "d0=b d1=32 d2=4 d3=16 -> (d0 d1) (d2 d3) {0}");
}

TEST(View, DropsOnes) {
  EXPECT_EQ(view_of("[1, 8, 1]", "[8]"), "1 d0=8 1 -> d0 {0}");
  EXPECT_EQ(view_of("[b]", "[b, 1, 1]"), "d0=b -> d0 1 1 {0}");
}

TEST(View, LocksWhatHasNoCommonRefinement) {
  // 24 elements: the halves agree, the rests of 6 and 4 do not.
  EXPECT_EQ(view_of("[6, 4]", "[4, 6]"), "(d0=2 d1=3!) d3=4! -> (d0 d2=2!) d4=6! {0}");
  EXPECT_EQ(view_of("[b, 3, 2, 5]", "[b, 2, 3, 5]"),
            "d0=b d1=3! d3=2! d5=5 -> d0 d2=2! d4=3! d5 {0}");
}

TEST(View, MovesASymbolOverALiteralOnlyWhereOrderAllows) {
  EXPECT_EQ(view_of("[4, b]", "[b*4]"), "d0=4 d1=b -> (d0 d1) {0}");
  EXPECT_EQ(view_of("[b, 4]", "[4, b]"), "d0=b! d2=4! -> d1=4! d3=b! {0}");
}

TEST(Layout, Permutations) {
  EXPECT_EQ(instance_of({"f32[b, 4, 8]"}, "aten.permute.default(%0, [2, 0, -2]) : f32[8, b, 4]"),
            "d1=b d2=4 d0=8 -> d0 d1 d2 {0}");
  EXPECT_EQ(instance_of({"f32[b, 4, 8]"}, "aten.transpose.int(%0, -1, 1) : f32[b, 8, 4]"),
            "d0=b d2=4 d1=8 -> d0 d1 d2 {0}");
}

TEST(Layout, ExpandMakesLabelsOfTheResult) {
  EXPECT_EQ(instance_of({"f32[4, 1]"}, "aten.expand.default(%0, [b, 4, 8], false) : f32[b, 4, 8]"),
            "d1=4 1 -> d0=b d1 d2=8 {0}");
}

TEST(Layout, RepeatIsAProduct) {
  EXPECT_EQ(instance_of({"f32[4, 1]"}, "aten.repeat.default(%0, [3, 8]) : f32[12, 8]"),
            "d1=4 1 -> (d0=3 d1) d2=8 {0}");
}

// --- parts of dims -------------------------------------------------------------------------------

TEST(Slice, OfEverythingMaps) {
  EXPECT_EQ(
      instance_of({"f32[b, 8]"}, "aten.slice.Tensor(%0, 1, 0, 9223372036854775807, 1) : f32[b, 8]"),
      "d0=b d1=8 -> d0 d1 {0}");
  EXPECT_EQ(instance_of({"f32[b, 8]"}, "aten.slice.Tensor(%0, 1, 2, 8, 1) : f32[b, 6]"),
            "d0=b d1=8! -> d0 d2=6! {0}");
}

TEST(Split, EqualPiecesAreAProduct) {
  EXPECT_EQ(instance_of({"f32[b, 192]"},
                        "aten.split.Tensor(%0, 64, 1) : f32[b, 64], f32[b, 64], f32[b, 64]"),
            "d0=b (d1=3! d2=64) -> d0 d2, d0 d2, d0 d2 {0}");
  EXPECT_EQ(instance_of({"f32[b, 48]"},
                        "aten.split_with_sizes.default(%0, [24, 12, 12], 1) : f32[b, 24], f32[b, "
                        "12], f32[b, 12]"),
            "d0=b d1=48! -> d0 d2=24!, d0 d3=12!, d0 d4=12! {0}");
}

TEST(Cat, IsTheInverseOfSplit) {
  EXPECT_EQ(instance_of({"f32[b, 8]", "f32[b, 8]"}, "aten.cat.default([%0, %1], -1) : f32[b, 16]"),
            "d0=b d2=8, d0 d2 -> d0 (d1=2! d2) {0+1}");
  EXPECT_EQ(instance_of({"f32[b, 1]", "f32[b, 16]"}, "aten.cat.default([%0, %1], 1) : f32[b, 17]"),
            "d0=b 1, d0 d1=16! -> d0 d2=17! {0+1}");
  EXPECT_EQ(instance_of({"f32[0]", "f32[b, 16]"}, "aten.cat.default([%0, %1], 1) : f32[b, 16]"),
            "d2=0!, d0=b d1=16 -> d0 d1 {0+1}");
}

TEST(Select, LocksItsDim) {
  EXPECT_EQ(instance_of({"f32[b, 17, 64]"}, "aten.select.int(%0, 1, 0) : f32[b, 64]"),
            "d0=b d2=17! d1=64 -> d0 d1 {0}");
  EXPECT_EQ(instance_of({"f32[b, 64]"},
                        "aten.select_backward.default(%0, [b, 17, 64], 1, 0) : f32[b, 17, 64]"),
            "d0=b d1=64 -> d0 d2=17! d1 {0}");
}

// --- normalisation, indexing, losses -------------------------------------------------------------

TEST(Softmax, IsACompositeInItsDim) {
  EXPECT_EQ(instance_of({"f32[b, 256]"}, "aten._log_softmax.default(%0, 1, false) : f32[b, 256]"),
            "d0=b d1=256% -> d0 d1");
}

TEST(Nll, TotalWeightIsUnaffectedByTheVocabulary) {
  EXPECT_EQ(instance_of({"f32[b, 10]", "i64[b]"},
                        "aten.nll_loss_forward.default(%0, %1, none, 2, -100) : f32[], f32[]"),
            "n=b v=10~, n -> (), () =v");
  EXPECT_EQ(
      instance_of({"f32[]", "f32[b, 10]", "i64[b]", "f32[]"},
                  "aten.nll_loss_backward.default(%0, %1, %2, none, 2, -100, %3) : f32[b, 10]"),
      "(), n=b v=10~, n, () -> n v {0}");
}

TEST(Embedding, SelectsRows) {
  EXPECT_EQ(instance_of({"f32[256, 64]", "i64[b, 32]"},
                        "aten.embedding.default(%0, %1, -1, false, false) : f32[b, 32, 64]"),
            "v=256~ e=64, d0=b d1=32 -> d0 d1 e {0}");
  EXPECT_EQ(
      instance_of({"f32[b, 32, 64]", "i64[b, 32]"},
                  "aten.embedding_dense_backward.default(%0, %1, 256, -1, false) : f32[256, 64]"),
      "d0=b d1=32 e=64, d0 d1 -> v=256~ e {0}");
}

TEST(Index, LocksIndexedDimsAndPlacesTheOthers) {
  EXPECT_EQ(instance_of({"f32[b, 32, 7]", "i64[b, 1]", "i64[5]"},
                        "aten.index.Tensor(%0, [%1, %2]) : f32[b, 5, 7]"),
            "d3=b! d4=32! d2=7, d0=b 1, d1=5 -> d0 d1 d2 {0}");
  // Index tensors with a gap between them put their dims first.
  EXPECT_EQ(instance_of({"f32[6, 7, 8]", "i64[5]", "i64[5]"},
                        "aten.index.Tensor(%0, [%1, none, %2]) : f32[5, 7]"),
            "d2=6! d1=7 d3=8!, d0=5, (), d0 -> d0 d1 {0}");
}

TEST(Attention, GroupsOfQueriesAreAProduct) {
  EXPECT_EQ(instance_of({"f32[b, 4, 32, 16]", "f32[b, 2, 32, 16]", "f32[b, 2, 32, 16]"},
                        "medley.attention.default(%0, %1, %2, none, true, 0.25) : f32[b, 4, 32, "
                        "16], f32[b, 4, 32]"),
            "b=b (g=2 r=2) s=32! h=16!, b g t=32! h, b g t e=16 -> b (g r) s e, b (g r) s =e");
}

TEST(Attention, QueriesSplitWithoutACausalMaskAndABiasMayBeBroadcast) {
  EXPECT_EQ(
      instance_of({"f32[b, 4, 32, 8]", "f32[b, 4, 16, 8]", "f32[b, 4, 16, 8]", "f32[b, 1, 1, 16]"},
                  "medley.attention.default(%0, %1, %2, %3, false, 0.25) : f32[b, 4, 32, 8], "
                  "f32[b, 4, 32]"),
      "b=b g=4 s=32 h=8!, b g t=16! h, b g t e=8, b 1 1 t -> b g s e, b g s =e");
}

TEST(Convolution, GroupsAreALabel) {
  EXPECT_EQ(instance_of({"f32[b, 8, 5, 5]", "f32[8, 1, 3, 3]"},
                        "aten.convolution.default(%0, %1, none, [1, 1], [1, 1], [1, 1], false, [0, "
                        "0], 8) : f32[b, 8, 5, 5]"),
            "n=b g=8 x0=5! x1=5!, g 1 k0=3! k1=3! -> n g y0=5! y1=5! {0}{1}");
}

// The gradient of the bias has all its terms on every device when input channels are split.
TEST(ConvolutionBackward, BiasIsUnaffectedByInputChannels) {
  EXPECT_EQ(instance_of({"f32[b, 6, 5]", "f32[b, 4, 5]", "f32[6, 4, 3]"},
                        "aten.convolution_backward.default(%0, %1, %2, [6], [1], [1], [1], false, "
                        "[0], 1, [true, true, true])"
                        " : f32[b, 4, 5], f32[6, 4, 3], f32[6]"),
            "n=b o=6 y0=5!, n c=4 x0=5!, o c k0=3! -> n c x0, o c k0, o =c {0}");
}

TEST(Reduction, PartialMaximum) {
  EXPECT_EQ(instance_of({"f32[b, 8]"}, "aten.amax.default(%0, [1], true) : f32[b, 1]"),
            "d0=b d1=8 -> d0 1 ^d0 ^d1");
}

TEST(Update, ScalarsHaveNoLabels) {
  EXPECT_EQ(instance_of({"f32[8, 4]", "f32[8, 4]", "f32[8, 4]", "f32[8, 4]", "f64[3]"},
                        "medley.adamw.default(%0, %1, %2, %3, none, %4, 0.9, 0.999, 1e-08, 0.1)"
                        " : f32[8, 4], f32[8, 4], f32[8, 4], f32[8, 4]"),
            "d0=8 d1=4, d0 d1, d0 d1, d0 d1, 1 -> d0 d1, d0 d1, d0 d1, d0 d1");
}

// Adding onto zeros gives partial sums; every device would count other values once.
TEST(ScatterAdd, SplitsItsIndexOntoZerosOnly) {
  const std::string head =
      "medley-graph 1\ngraph \"g\"\nsymbols b\n%0 = batch \"i\" : i64[b, 5]\n%1 = batch \"s\" : "
      "f32[b, 5]\n";
  const std::string scatter =
      "%3 = aten.scatter_add.default(%2, 1, %0, %1) : f32[b, 9] @forward \"\"\n";
  const Graph zeros = parse_graph(
      head + "%2 = aten.zeros.default([b, 9], f32, none, none, none) : f32[b, 9] @forward \"\"\n" +
          scatter,
      "test");
  EXPECT_EQ(to_string(*instantiate(zeros, zeros.ops[1]), zeros.symbols),
            "d0=b d2=9!, d0 d1=5, d0 d1 -> d0 d3=9! {0+2}");
  const Graph others = parse_graph(
      head + "%2 = aten.ones.default([b, 9], f32, none, none, none) : f32[b, 9] @forward \"\"\n" +
          scatter,
      "test");
  EXPECT_EQ(to_string(*instantiate(others, others.ops[1]), others.symbols),
            "d0=b d1=9!, d0 d2=5!, d0 d3=5! -> d0 d4=9! {0+2}");
}

// Every op of the captured models has a rule.
TEST(Rules, CoverTheInventory) {
  std::ifstream file("tests/data/op_inventory.txt");
  ASSERT_TRUE(file);
  std::vector<std::string> missing;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#' && !find_rule(line.substr(0, line.find(':'))))
      missing.push_back(line);
  EXPECT_THAT(missing, ::testing::IsEmpty());
}

// Every pattern parses, and its rule's linear operands exist.
TEST(Rules, AreWellFormed) {
  for (const Rule& rule : rules()) {
    EXPECT_EQ(rule.pattern.empty(), rule.instance != nullptr) << rule.op;
    EXPECT_EQ(find_rule(rule.op), &rule) << rule.op;
  }
}

}  // namespace
}  // namespace medley
