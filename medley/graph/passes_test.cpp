#include "medley/graph/passes.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "medley/graph/text.h"
#include "medley/graph/verify.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Shared inputs, %0 to %6.
constexpr char kHead[] = R"(medley-graph 1
graph "g"
symbols b
%0 = parameter "w" : f32[8, 16]
%1 = parameter "bias" : f32[16]
%2 = batch "x" : f32[b, 4, 8]
%3 = batch "y" : f32[b, 8]
%4 = batch "z" : f32[b, 4, 16]
%5 = batch "l" : f32[]
%6 = parameter "v" : f32[16, 8]
)";

// Returns the ops and outputs of the graph after a pass and dead code removal, without phases.
std::string after(Graph (*pass)(const Graph&), const std::string& body) {
  const Graph before = parse_graph(kHead + body, "g");
  verify(before);
  const Graph once = pass(before);
  verify(once);
  const Graph result = remove_dead_ops(once);
  verify(result);
  std::string text = print(result).substr(sizeof kHead - 1);
  const std::string place = " @forward \"\"";
  for (size_t at = text.find(place); at != std::string::npos; at = text.find(place))
    text.erase(at, place.size());
  return text;
}

std::string op(const std::string& id, const std::string& call, const std::string& type) {
  return id + " = " + call + " : " + type + " @forward \"\"\n";
}

// Runs fold_identities on the ops and returns the replacement of %9; a value still computed by an
// op follows the seven inputs.
std::string identity(const std::string& ops) {
  const std::string text = after(
      fold_identities, ops + op("%10", "test.use.default(%9)", "f32[]") + "output loss %10\n");
  const size_t start = text.find("use.default(") + 12;
  return text.substr(start, text.find(')', start) - start);
}

// Adds ops %7 and %8, which the body does not need.
std::string filled(const std::string& ops) {
  return op("%7", "aten.t.default(%3)", "f32[8, b]") + op("%8", "aten.t.default(%3)", "f32[8, b]") +
         ops;
}

TEST(RemoveDeadOps, KeepsWhatOutputsNeed) {
  EXPECT_EQ(after(remove_dead_ops,
                  op("%7", "aten.a.x(%3)", "f32[]") + op("%8, %9", "aten.b.x(%3)", "f32[], f32[]") +
                      op("%10", "aten.c.x(%7)", "f32[]") + "output loss %9\n"),
            "%7, %8 = aten.b.x(%3) : f32[], f32[]\noutput loss %8\n");
}

TEST(FoldIdentities, CopiesOfTheSameType) {
  for (const std::string call : {"detach.default(%3)",
                                 "alias.default(%3)",
                                 "lift_fresh_copy.default(%3)",
                                 "clone.default(%3, none)",
                                 "copy.default(%8, %3, false)",
                                 "_to_copy.default(%3, f32, none, none, none, false, none)",
                                 "view.default(%3, [b, 8])",
                                 "_unsafe_view.default(%3, [b, 8])",
                                 "reshape.default(%3, [b, 8])",
                                 "expand.default(%3, [b, 8], false)",
                                 "slice.Tensor(%3, 0, 0, 9223372036854775807, 1)",
                                 "permute.default(%3, [0, -1])",
                                 "transpose.int(%3, 1, -1)",
                                 "mul.Scalar(%3, 1)",
                                 "mul.Tensor(%3, 1.0)",
                                 "add.Tensor(%3, 0, 1)",
                                 "div.Tensor(%3, 1)"})
    EXPECT_EQ(identity(filled(op("%9", "aten." + call, "f32[b, 8]"))), "%3") << call;
}

TEST(FoldIdentities, LeavesWhatChangesSomething) {
  EXPECT_EQ(identity(filled(op("%9", "aten._to_copy.default(%3, f64)", "f64[b, 8]"))), "%7");
  EXPECT_EQ(identity(filled(op("%9", "aten.slice.Tensor(%3, 1, 0, 4, 1)", "f32[b, 4]"))), "%7");
  EXPECT_EQ(identity(filled(op("%9", "aten.mul.Scalar(%3, 2)", "f32[b, 8]"))), "%7");
  EXPECT_EQ(identity(filled(op("%9", "aten.constant_pad_nd.default(%3, [-1, 1], 0)", "f32[b, 8]"))),
            "%7");
  // A transpose of a square keeps the type, but is no identity.
  EXPECT_EQ(identity(op("%7", "aten.x.x()", "f32[4, 4]") + op("%8", "aten.x.x()", "f32[]") +
                     op("%9", "aten.t.default(%7)", "f32[4, 4]")),
            "%8");
  // 1 / x is no identity.
  EXPECT_EQ(
      identity(op("%7", "aten.ones_like.default(%3)", "f32[b, 8]") +
               op("%8", "aten.x.x()", "f32[]") + op("%9", "aten.div.Tensor(%7, %3)", "f32[b, 8]")),
      "%8");
}

TEST(FoldIdentities, LeavesTheFirstElementsOfABuffer) {
  const auto folded = [](const std::string& end) {
    const std::string text = R"(medley-graph 1
graph "g"
symbols b
%0 = buffer "positions" : i64[1, 16]
)" + op("%1", "aten.slice.Tensor(%0, 1, 0, " + end + ", 1)", "i64[1, 16]") +
                             op("%2", "test.use.default(%1)", "f32[]") + "output loss %2\n";
    return fold_identities(parse_graph(text, "g")).ops.size() == 1;
  };
  EXPECT_FALSE(folded("16"));  // a batch of 15 tokens has 15
  EXPECT_TRUE(folded("9223372036854775807"));
}

TEST(FoldIdentities, PermutesThatUndoEachOther) {
  EXPECT_EQ(identity(filled(op("%9", "aten.t.default(%7)", "f32[b, 8]"))), "%3");
  EXPECT_EQ(identity(filled(op("%9", "aten.transpose.int(%7, 0, -1)", "f32[b, 8]"))), "%3");
  const std::string rolled = op("%7", "aten.permute.default(%2, [1, 2, 0])", "f32[4, 8, b]") +
                             op("%8", "aten.detach.default(%7)", "f32[4, 8, b]");
  EXPECT_EQ(identity(rolled + op("%9", "aten.permute.default(%8, [2, 0, 1])", "f32[b, 4, 8]")),
            "%2");
  EXPECT_EQ(identity(rolled + op("%9", "aten.permute.default(%8, [1, 2, 0])", "f32[8, b, 4]")),
            "%8");
}

TEST(FoldIdentities, ViewsThatUndoEachOther) {
  const std::string flat =
      op("%7", "aten.view.default(%2, [b*4, 8])", "f32[b*4, 8]") + op("%8", "aten.x.x()", "f32[]");
  EXPECT_EQ(identity(flat + op("%9", "aten._unsafe_view.default(%7, [b, 4, 8])", "f32[b, 4, 8]")),
            "%2");
  EXPECT_EQ(identity(flat + op("%9", "aten.view.default(%7, [b*8, 4])", "f32[b*8, 4]")), "%8");
}

TEST(FoldIdentities, FactorsThatAreOne) {
  const std::string ones = op("%7", "aten.full.default(sizes[], 1, f32)", "f32[]") +
                           op("%8", "aten.expand.default(%7, [b, 8], false)", "f32[b, 8]");
  EXPECT_EQ(identity(ones + op("%9", "aten.mul.Tensor(%3, %8)", "f32[b, 8]")), "%3");
  EXPECT_EQ(identity(ones + op("%9", "aten.mul.Tensor(%7, %3)", "f32[b, 8]")), "%3");
  EXPECT_EQ(identity(ones + op("%9", "aten.div.Tensor(%3, %8)", "f32[b, 8]")), "%3");
  // The ones widen the result, so the product is an expand.
  EXPECT_EQ(identity(ones + op("%9", "aten.mul.Tensor(%5, %8)", "f32[b, 8]")), "%9");
}

TEST(FoldIdentities, OutputsMayBecomeInputs) {
  EXPECT_EQ(after(fold_identities,
                  op("%7", "aten.detach.default(%5)", "f32[]") +
                      op("%8", "aten.alias.default(%0)", "f32[8, 16]") +
                      "output loss %7\noutput gradient \"w\" %8\n"),
            "output loss %5\noutput gradient \"w\" %0\n");
}

TEST(FoldConstants, ProductsAndQuotients) {
  const std::string constants = op("%7", "aten.full.default(sizes[], 1.5, f32)", "f32[]") +
                                op("%8", "aten.scalar_tensor.default(4, f32)", "f32[]");
  EXPECT_EQ(
      after(fold_constants,
            constants + op("%9", "aten.mul.Tensor(%7, %8)", "f32[]") +
                op("%10", "aten.div.Scalar(%9, 3)", "f32[]") + "output loss %10\n"),
      "%7 = aten.full.default(sizes[], 2.0, f32, none, none, none) : f32[]\noutput loss %7\n");
}

TEST(FoldConstants, FactorsBecomeNumbers) {
  const std::string constants = op("%7", "aten.full.default(sizes[], 0.5, f32)", "f32[]") +
                                op("%8", "aten.full.default(sizes[], 0.5, f64)", "f64[]");
  EXPECT_EQ(after(fold_constants,
                  constants + op("%9", "aten.mul.Tensor(%7, %5)", "f32[]") +
                      op("%10", "aten.div.Tensor(%9, %7)", "f32[]") + "output loss %10\n"),
            "%7 = aten.mul.Scalar(%5, 0.5) : f32[]\n%8 = aten.div.Scalar(%7, 0.5) : f32[]\n"
            "output loss %8\n");
  EXPECT_THAT(after(fold_constants,
                    constants + op("%9", "aten.div.Tensor(%7, %5)", "f32[]") + "output loss %9\n"),
              HasSubstr("aten.div.Tensor(%7, %5)"));
}

// 0.1 differs in f32, and a constant is rounded before it multiplies.
TEST(FoldConstants, RoundsToTheDtype) {
  EXPECT_THAT(after(fold_constants,
                    op("%7", "aten.full.default(sizes[], 0.1, f32)", "f32[]") +
                        op("%8", "aten.mul.Tensor(%5, %7)", "f32[]") + "output loss %8\n"),
              HasSubstr("aten.mul.Scalar(%5, 0.10000000149011612)"));
}

// The gradient of a bias of attention scores is such a sum over rows.
TEST(FoldConstants, ChosenConstantsBecomeNumbers) {
  const auto chosen = [](const std::string& constant, const std::string& type) {
    return after(fold_constants,
                 op("%7", "aten.gt.Scalar(%3, 0)", "bool[b, 8]") + op("%8", constant, type) +
                     op("%9", "aten.where.self(%7, %3, %8)", "f32[b, 8]") +
                     op("%10", "test.use.default(%9)", "f32[]") + "output loss %10\n");
  };
  const std::string folded = "aten.where.ScalarOther(%7, %3, 0.0) : f32[b, 8]";
  EXPECT_THAT(chosen("aten.scalar_tensor.default(0, f32)", "f32[]"), HasSubstr(folded));
  EXPECT_THAT(chosen("aten.full.default(sizes[], 0, f32)", "f32[]"), HasSubstr(folded));
  EXPECT_THAT(chosen("aten.scalar_tensor.default(0, bf16)", "bf16[]"), HasSubstr(folded));
  EXPECT_THAT(chosen("aten.zeros_like.default(%3)", "f32[b, 8]"), HasSubstr(folded));
  EXPECT_THAT(chosen("aten.full.default(sizes[], 0.1, f64)", "f64[]"),
              HasSubstr("aten.where.self(%7, %3, %8)"));  // no number of f32
  EXPECT_THAT(chosen("test.use.default(%3)", "f32[]"), HasSubstr("aten.where.self(%7, %3, %8)"));
}

// Without the check where(condition, i64, 0.0) would be a float.
TEST(FoldConstants, ChosenIntegersStayIntegers) {
  const auto chosen = [](const std::string& dtype, const std::string& zero) {
    const std::string rows = dtype + "[b, 8]";
    return after(
        fold_constants,
        op("%7", "aten.gt.Scalar(%3, 0)", "bool[b, 8]") + op("%8", "test.use.default(%3)", rows) +
            op("%9", "aten.scalar_tensor.default(" + zero + ", " + dtype + ")", dtype + "[]") +
            op("%10", "aten.where.self(%7, %8, %9)", rows) +
            op("%11", "test.use.default(%10)", "f32[]") + "output loss %11\n");
  };
  EXPECT_THAT(chosen("i64", "0"), HasSubstr("aten.where.ScalarOther(%7, %8, 0) : i64[b, 8]"));
  EXPECT_THAT(chosen("bool", "false"), HasSubstr("aten.where.self(%7, %8, %9) : bool[b, 8]"));
}

TEST(FoldCounts, OneColumnOfEachRow) {
  const std::string count = op("%7", "aten.arange.default(b, i64)", "i64[b]") +
                            op("%8", "test.last.default(%3)", "i32[b]");
  const std::string use = op("%10", "test.use.default(%9)", "f32[]") + "output loss %10\n";
  const std::string columns =
      "%8 = aten._to_copy.default(%7, i64, none, none, none, false, none) : i64[b]\n"
      "%9 = aten.remainder.Scalar(%8, 4) : i64[b]\n"
      "%10 = aten.view.default(%9, [b, 1, 1]) : i64[b, 1, 1]\n"
      "%11 = aten.expand.default(%10, [b, 1, 8], false) : i64[b, 1, 8]\n";
  EXPECT_THAT(
      after(fold_counts, count + op("%9", "aten.index.Tensor(%2, [%7, %8])", "f32[b, 8]") + use),
      HasSubstr(columns + "%12 = aten.gather.default(%2, 1, %11, false) : f32[b, 1, 8]\n"
                          "%13 = aten.view.default(%12, [b, 8]) : f32[b, 8]\n"));
  const auto put = [&](const std::string& adds) {
    return after(
        fold_counts,
        count + op("%9", "aten.index_put.default(%2, [%7, %8], %3, " + adds + ")", "f32[b, 4, 8]") +
            use);
  };
  EXPECT_THAT(
      put("true"),
      HasSubstr(columns + "%12 = aten.view.default(%3, [b, 1, 8]) : f32[b, 1, 8]\n"
                          "%13 = aten.scatter_add.default(%2, 1, %11, %12) : f32[b, 4, 8]\n"));
  EXPECT_THAT(put("false"), HasSubstr("index_put"));
}

TEST(FoldEmpty, CatAndGradient) {
  const std::string nothing =
      op("%7", "aten.slice.Tensor(%3, 1, 8, 9223372036854775807, 1)", "f32[b, 0]");
  const std::string use = op("%10", "test.use.default(%9)", "f32[]") + "output loss %10\n";
  EXPECT_EQ(after(fold_empty,
                  nothing + op("%8", "aten.cat.default([%7, %3], 1)", "f32[b, 8]") +
                      op("%9", "aten.cat.default([%8, %7, %3], -1)", "f32[b, 16]") + use),
            "%7 = aten.cat.default([%3, %3], -1) : f32[b, 16]\n"
            "%8 = test.use.default(%7) : f32[]\noutput loss %8\n");
  const std::string backward = op(
      "%8", "aten.slice_backward.default(%7, [b, 8], 1, 8, 9223372036854775807, 1)", "f32[b, 8]");
  EXPECT_THAT(
      after(fold_empty, nothing + backward + op("%9", "aten.neg.default(%8)", "f32[b, 8]") + use),
      HasSubstr("%7 = aten.full.default([b, 8], 0, f32, none, none, none) : f32[b, 8]"));
  EXPECT_THAT(after(fold_identities,
                    op("%7", "aten.full.default([b, 8], 0, f32, none, none, none)", "f32[b, 8]") +
                        op("%8", "aten.neg.default(%3)", "f32[b, 8]") +
                        op("%9", "aten.add.Tensor(%7, %8, 1)", "f32[b, 8]") + use),
              HasSubstr("test.use.default(%7)"));
}

TEST(FoldCounts, OnlyWholeDimsInTheirOrder) {
  const auto indexed = [](const std::string& indices, const std::string& shape) {
    return after(fold_counts,
                 op("%7", "aten.arange.default(b, i64)", "i64[b]") +
                     op("%8", "aten.arange.start(0, 4, i64)", "i64[4]") +
                     op("%9", "aten.unsqueeze.default(%7, 1)", "i64[b, 1]") +
                     op("%10", "aten.view.default(%9, [b, 1, 1])", "i64[b, 1, 1]") +
                     op("%11", "aten.add.Tensor(%8, 0, 1)", "i64[4]") +
                     op("%12", "aten.arange.start(1, 5, i64)", "i64[4]") +
                     op("%13", "aten.unsqueeze.default(%8, 1)", "i64[4, 1]") +
                     op("%14", "aten.index.Tensor(%2, [" + indices + "])", "f32" + shape) +
                     op("%15", "test.use.default(%14)", "f32[]") + "output loss %15\n");
  };
  EXPECT_THAT(indexed("%10, %11", "[b, 1, 4, 8]"), HasSubstr("view.default(%2, [b, 1, 4, 8])"));
  EXPECT_THAT(indexed("%9", "[b, 1, 4, 8]"), HasSubstr("view.default(%2, [b, 1, 4, 8])"));
  EXPECT_THAT(indexed("none, %13", "[b, 4, 1, 8]"), HasSubstr("view.default(%2, [b, 4, 1, 8])"));
  EXPECT_THAT(indexed("%10, %12", "[b, 1, 4, 8]"), HasSubstr("index.Tensor"));  // starts at 1
  EXPECT_THAT(indexed("%8", "[4, 4, 8]"), HasSubstr("index.Tensor"));           // only some rows
  EXPECT_THAT(indexed("%7, %13", "[4, b, 8]"), HasSubstr("index.Tensor"));      // transposes
}

TEST(SplitAddmm, OnlyPlainOnes) {
  const std::string input = op("%7", "aten.view.default(%2, [b*4, 8])", "f32[b*4, 8]");
  const std::string use = op("%9", "aten.sum.default(%8, none)", "f32[]") + "output loss %9\n";
  EXPECT_THAT(
      after(split_addmm,
            input + op("%8", "aten.addmm.default(%1, %7, %0, 1, 1.0)", "f32[b*4, 16]") + use),
      HasSubstr("%8 = aten.mm.default(%7, %0) : f32[b*4, 16]\n"
                "%9 = aten.add.Tensor(%8, %1, 1) : f32[b*4, 16]\n"));
  EXPECT_THAT(after(split_addmm,
                    input + op("%8", "aten.addmm.default(%1, %7, %0, 1, 2)", "f32[b*4, 16]") + use),
              HasSubstr("aten.addmm.default(%1, %7, %0, 1, 2)"));
}

const std::string kFlat = op("%7", "aten.view.default(%2, [b*4, 8])", "f32[b*4, 8]");
const std::string kMm = op("%8", "aten.mm.default(%7, %0)", "f32[b*4, 16]");
const std::string kRestored =
    op("%9", "aten._unsafe_view.default(%8, [b, 4, 16])", "f32[b, 4, 16]");

std::string merged(const std::string& ops, const std::string& last) {
  const std::string sum = "%" + std::to_string(std::stoi(last.substr(1)) + 1);
  return after(
      merge_views_into_mm,
      ops + op(sum, "aten.sum.default(" + last + ", none)", "f32[]") + "output loss " + sum + "\n");
}

TEST(MergeViews, ViewMmViewIsAContraction) {
  EXPECT_EQ(merged(kFlat + kMm + kRestored, "%9"),
            "%7 = medley.contract.default(%2, %0) : f32[b, 4, 16]\n"
            "%8 = aten.sum.default(%7, none) : f32[]\noutput loss %8\n");
}

TEST(MergeViews, TheBiasBetweenComesAlong) {
  EXPECT_EQ(merged(kFlat + kMm + op("%9", "aten.add.Tensor(%8, %1, 1)", "f32[b*4, 16]") +
                       op("%10", "aten.view.default(%9, [b, 4, 16])", "f32[b, 4, 16]"),
                   "%10"),
            "%7 = medley.contract.default(%2, %0) : f32[b, 4, 16]\n"
            "%8 = aten.add.Tensor(%7, %1, 1) : f32[b, 4, 16]\n"
            "%9 = aten.sum.default(%8, none) : f32[]\noutput loss %9\n");
}

// fold_identities leaves mm directly behind mm where a view restored and merged between them.
TEST(MergeViews, ChainsOfMm) {
  EXPECT_EQ(merged(kFlat + kMm + op("%9", "aten.mm.default(%8, %6)", "f32[b*4, 8]") +
                       op("%10", "aten.view.default(%9, [b, 4, 8])", "f32[b, 4, 8]"),
                   "%10"),
            "%7 = medley.contract.default(%2, %0) : f32[b, 4, 16]\n"
            "%8 = medley.contract.default(%7, %6) : f32[b, 4, 8]\n"
            "%9 = aten.sum.default(%8, none) : f32[]\noutput loss %9\n");
}

// The matrix is also used directly: it becomes a view, and nothing is computed twice.
TEST(MergeViews, OtherUsersGetAView) {
  EXPECT_EQ(merged(kFlat + kMm + kRestored + op("%10", "test.both.x(%8, %9)", "f32[4]"), "%10"),
            "%7 = medley.contract.default(%2, %0) : f32[b, 4, 16]\n"
            "%8 = aten.view.default(%7, [b*4, 16]) : f32[b*4, 16]\n"
            "%9 = test.both.x(%8, %7) : f32[4]\n"
            "%10 = aten.sum.default(%9, none) : f32[]\noutput loss %10\n");
}

TEST(MergeViews, OnlyLeadingDimsThatComeBack) {
  // No view restores the rows.
  EXPECT_THAT(merged(kFlat + kMm, "%8"), Not(HasSubstr("contract")));
  // A view restores other dims.
  EXPECT_THAT(
      merged(kFlat + kMm + op("%9", "aten.view.default(%8, [4, b, 16])", "f32[4, b, 16]"), "%9"),
      Not(HasSubstr("contract")));
  // The last dim is merged too.
  EXPECT_THAT(merged(op("%7", "aten.view.default(%4, [b*8, 8])", "f32[b*8, 8]") +
                         op("%8", "aten.mm.default(%7, %0)", "f32[b*8, 16]") +
                         op("%9", "aten.view.default(%8, [b, 8, 16])", "f32[b, 8, 16]"),
                     "%9"),
              Not(HasSubstr("contract")));
}

// Loss and metrics stay; gradients, new buffer values and ops only for these go.
TEST(ForwardOnly, KeepsLossAndMetrics) {
  const Graph whole = parse_graph(R"(medley-graph 1
graph "g"
symbols b
%0 = parameter "w" : f32[4, 6]
%1 = buffer "seen" : f32[]
%2 = batch "x" : f32[b, 4]
%3 = aten.mm.default(%2, %0) : f32[b, 6] @forward ""
%4 = aten.sum.default(%3, none) : f32[] @forward ""
%5 = aten.relu.default(%3) : f32[b, 6] @forward ""
%6 = aten.sum.default(%5, none) : f32[] @forward ""
%7 = aten.add.Tensor(%1, %4, 1) : f32[] @forward ""
%8 = aten.ones_like.default(%3, none, none, none, none, none) : f32[b, 6] @backward ""
%9 = aten.t.default(%2) : f32[4, b] @backward ""
%10 = aten.mm.default(%9, %8) : f32[4, 6] @backward ""
output loss %4
output metric "positive" %6
output gradient "w" %10
output buffer "seen" %7
)",
                                  "g");
  verify(whole);
  const Graph forward = forward_only(whole);
  EXPECT_EQ(forward.ops.size(), 4u);
  ASSERT_EQ(forward.outputs.size(), 2u);
  EXPECT_EQ(forward.outputs[1].kind, OutputKind::kMetric);
  EXPECT_EQ(forward.outputs[1].name, "positive");
  EXPECT_EQ(print(parse_graph(print(forward), "g")), print(forward));
}

TEST(RunPasses, Mlp) {
  std::ifstream file(MEDLEY_TEST_DATA "/mlp.graph");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<PassTime> times;
  const Graph result = run_passes(parse_graph(text.str(), "mlp.graph"), &times);
  // 29 ops: minus five detaches and double transposes of values, plus an add per addmm.
  EXPECT_EQ(result.ops.size(), 24u);
  EXPECT_THAT(stable_names(result),
              ElementsAre("/full#0",
                          "/sum#0",
                          "fc1/t#0",
                          "fc1/mm#0",
                          "fc1/add#0",
                          "act/relu#0",
                          "fc2/t#0",
                          "fc2/mm#0",
                          "fc2/add#0",
                          "/mse_loss#0",
                          "/mean_loss#0",
                          "/~full#0",
                          "/~mean_loss_backward#0",
                          "/~mse_loss_backward#0",
                          "fc2/~mm#0",
                          "fc2/~t#0",
                          "fc2/~mm#1",
                          "fc2/~sum#0",
                          "fc2/~view#0",
                          "act/~threshold_backward#0",
                          "fc1/~t#0",
                          "fc1/~mm#0",
                          "fc1/~sum#0",
                          "fc1/~view#0"));
  EXPECT_EQ(times.size(), passes().size());
  EXPECT_EQ(times.front().ops_before, 29);
  EXPECT_EQ(times.back().ops_after, 24);
  EXPECT_EQ(hash(run_passes(result)), hash(result));  // a second run finds nothing
}

// Neither the shape of x nor the total weight of a summed loss keeps or moves a tensor.
TEST(Passes, DropUnreadOperandsLeavesShapesOnly) {
  const Graph graph = parse_graph(R"(medley-graph 1
graph "unread"
symbols b
%0 = batch "x" : f32[b, 4]
%1 = batch "y" : i64[b]
%2 = aten.zeros_like.default(%0, none, none, none, none, none) : f32[b, 4] @forward ""
%3, %4 = aten.nll_loss_forward.default(%0, %1, none, 2, -100) : f32[], f32[] @forward ""
%5 = aten.nll_loss_backward.default(%3, %0, %1, none, 2, -100, %4) : f32[b, 4] @backward ""
%6 = aten.add.Tensor(%5, %2, 1) : f32[b, 4] @backward ""
%7 = aten.sum.default(%6, none) : f32[] @backward ""
output loss %7
)",
                                  "unread.graph");
  const Graph result = drop_unread_operands(graph);
  verify(result);
  EXPECT_THAT(operands(result.ops[0]), IsEmpty());
  const auto backward = std::find_if(result.ops.begin(), result.ops.end(), [](const Op& op) {
    return op.name == "aten.nll_loss_backward.default";
  });
  ASSERT_NE(backward, result.ops.end());
  const ValueId weight = operands(*backward).back();
  EXPECT_EQ(result.ops[at(result.values[at(weight)].producer)].name, "aten.full.default");
}

}  // namespace
}  // namespace medley
