#include "medley/sharding/factors.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <sstream>

#include "medley/graph/text.h"
#include "medley/sharding/choice.h"
#include "medley/sharding/coupling.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Graph graph_of(const std::string& body) {
  return parse_graph("medley-graph 1\ngraph \"g\"\nsymbols b\n" + body, "test.graph");
}

std::vector<std::string> sizes(const Graph& graph,
                               const Factors& factors,
                               ValueId value,
                               size_t dim) {
  std::vector<std::string> all;
  for (ExtentId extent : factors.values[at(value)][dim])
    all.push_back(to_string(factors.extent_sizes[at(extent)], graph.symbols));
  return all;
}

constexpr char kFusedQkv[] = R"(%0 = parameter "qkv" : f32[64, 192]
%1 = batch "x" : f32[b, 32, 64]
%2 = aten.view.default(%1, [b*32, 64]) : f32[b*32, 64] @forward "qkv"
%3 = aten.mm.default(%2, %0) : f32[b*32, 192] @forward "qkv"
%4 = aten.view.default(%3, [b, 32, 3, 4, 16]) : f32[b, 32, 3, 4, 16] @forward "attn"
%5 = aten.sum.default(%4, none) : f32[] @forward ""
output loss %5
)";

// The view of the matmul determines the weight's columns, two ops earlier.
TEST(Factors, ViewsRefineTheProducer) {
  const Graph graph = graph_of(kFusedQkv);
  const Factors factors = factorize(graph);
  EXPECT_THAT(sizes(graph, factors, 0, 1), ElementsAre("3", "4", "16"));
  EXPECT_THAT(sizes(graph, factors, 2, 0), ElementsAre("b", "32"));
  EXPECT_THAT(sizes(graph, factors, 0, 0), ElementsAre("64"));
  EXPECT_THAT(fallbacks(graph, factors), IsEmpty());
}

// A cut of the heads is a strided shard of the weight: factor 1 of dim 1, position 2 of all.
TEST(Factors, HeadsAreAPosition) {
  const Graph graph = graph_of(kFusedQkv);
  const Factors factors = factorize(graph);
  const int position = position_of(factors, 0, 1, 1);
  EXPECT_EQ(position, 2);
  const auto cut = cut_for_operand(graph, factors, 1, 1, sharded(position, 0));
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(to_string(factors, 1, *cut, {"heads"}), "n.1 heads");
  EXPECT_THAT(operand_placements(graph, factors, 1, *cut),
              ElementsAre(replicated(), sharded(2, 0)));
  EXPECT_THAT(result_placements(graph, factors, 1, *cut), ElementsAre(sharded(3, 0)));
}

// A square weight has two dims of one size: they share an extent at most, never a position.
TEST(Factors, SquareWeightHasTwoPositions) {
  const Graph graph = graph_of(R"(%0 = parameter "w" : f32[8, 8]
%1 = batch "x" : f32[b, 8]
%2 = aten.mm.default(%1, %0) : f32[b, 8] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
output loss %3
)");
  const Factors factors = factorize(graph);
  const auto rows = cut_for_operand(graph, factors, 0, 1, sharded(0, 0));
  const auto columns = cut_for_operand(graph, factors, 0, 1, sharded(1, 0));
  ASSERT_TRUE(rows && columns);
  EXPECT_EQ(result_placements(graph, factors, 0, *rows)[0], partial_sum());
  EXPECT_EQ(result_placements(graph, factors, 0, *columns)[0], sharded(1, 0));
}

// 3 x 5 viewed as 5 x 3 has no common refinement, so it cannot be cut.
TEST(Factors, ViewWithoutCommonRefinementIsLocked) {
  const Graph graph = graph_of(R"(%0 = batch "x" : f32[b, 3, 5]
%1 = aten.view.default(%0, [b, 5, 3]) : f32[b, 5, 3] @forward ""
%2 = aten.sum.default(%1, none) : f32[] @forward ""
output loss %2
)");
  const Factors factors = factorize(graph);
  EXPECT_FALSE(cut_for_operand(graph, factors, 0, 0, sharded(1, 0)).has_value());
  EXPECT_TRUE(cut_for_operand(graph, factors, 0, 0, sharded(0, 0)).has_value());
}

TEST(Factors, BatchInputsShareTheBatch) {
  const Graph graph = graph_of(R"(%0 = batch "x" : f32[b, 4]
%1 = batch "y" : f32[b, 4]
%2 = aten.sum.default(%0, none) : f32[] @forward ""
output loss %2
)");
  const Factors factors = factorize(graph);
  EXPECT_EQ(factors.values[0][0], factors.values[1][0]);
}

TEST(RowCoupling, SumOfRowsIsIndependent) {
  const Graph graph = graph_of(kFusedQkv);
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "");
}

// logits = a @ a.T has the batch twice: every row depends on every other.
TEST(RowCoupling, ContrastiveLogitsCouple) {
  const Graph graph = graph_of(R"(%0 = batch "a" : f32[b, 4]
%1 = aten.t.default(%0) : f32[4, b] @forward ""
%2 = aten.mm.default(%0, %1) : f32[b, b] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
output loss %3
)");
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "rows meet in /mm#0");
}

// The square of a mean over rows is not a sum over rows.
TEST(RowCoupling, SumUnderANonlinearOpCouples) {
  const Graph graph = graph_of(R"(%0 = batch "a" : f32[b, 4]
%1 = aten.sum.default(%0, none) : f32[] @forward ""
%2 = aten.exp.default(%1) : f32[] @forward ""
output loss %2
)");
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "rows meet in /exp#0");
}

// An op without a rule requires all rows, for any computation.
TEST(RowCoupling, AnOpWithoutARuleIsNamedAsThat) {
  const Graph graph = graph_of(R"(%0 = batch "a" : f32[b, 4]
%1 = aten.no_such_op.default(%0) : f32[b, 4] @forward ""
%2 = aten.sum.default(%1, none) : f32[] @forward ""
output loss %2
)");
  EXPECT_EQ(
      row_coupling(graph, factorize(graph)),
      "/no_such_op#0 has no rule that fits (aten.no_such_op.default), and takes all rows at once");
}

// A penalty on a parameter would be added once per micro-batch.
TEST(RowCoupling, PenaltyCouples) {
  const Graph graph = graph_of(R"(%0 = parameter "w" : f32[4]
%1 = batch "a" : f32[b, 4]
%2 = aten.sum.default(%1, none) : f32[] @forward ""
%3 = aten.sum.default(%0, none) : f32[] @forward ""
%4 = aten.add.Tensor(%2, %3, 1) : f32[] @forward ""
output loss %4
)");
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "rows meet in /add#0");
}

// Returns the ops of the graph with its sums over the step, without types and phases.
std::vector<std::string> with_sums(const std::string& text) {
  const Graph graph = with_step_sums(graph_of(text));
  std::vector<std::string> lines;
  std::istringstream all(print(graph));
  for (std::string line; std::getline(all, line);)
    if (line.find(" @") != std::string::npos || line.starts_with("output"))
      lines.push_back(line.substr(0, line.find(" : ")));
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "");
  return lines;
}

TEST(StepSums, AFunctionOfASumThatNeedsNoParametersReadsTheStep) {
  EXPECT_EQ(with_sums(R"(%0 = parameter "w" : f32[4]
%1 = batch "x" : f32[b, 4]
%2 = batch "k" : f32[b]
%3 = aten.mul.Tensor(%1, %0) : f32[b, 4] @forward ""
%4 = aten.sum.default(%3, none) : f32[] @forward ""
%5 = aten.sum.default(%2, none) : f32[] @forward ""
%6 = aten.clamp.default(%5, 1, none) : f32[] @forward ""
%7 = aten.div.Tensor(%4, %6) : f32[] @forward ""
output loss %7
)"),
            (std::vector<std::string>{"%3 = aten.mul.Tensor(%1, %0)",
                                      "%4 = aten.sum.default(%3, none)",
                                      "%5 = aten.sum.default(%2, none)",
                                      "%6 = medley.step_sum.default(%5)",
                                      "%7 = aten.clamp.default(%6, 1, none)",
                                      "%8 = aten.div.Tensor(%4, %7)",
                                      "output loss %8"}));
}

TEST(StepSums, APenaltyCountsByTheRows) {
  EXPECT_EQ(with_sums(R"(%0 = parameter "w" : f32[4]
%1 = batch "x" : f32[b, 4]
%2 = aten.mul.Tensor(%1, %0) : f32[b, 4] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
%4 = aten.sum.default(%0, none) : f32[] @forward ""
%5 = aten.add.Tensor(%3, %4, 1) : f32[] @forward ""
output loss %5
)"),
            (std::vector<std::string>{"%2 = aten.mul.Tensor(%1, %0)",
                                      "%3 = aten.sum.default(%2, none)",
                                      "%4 = aten.sum.default(%0, none)",
                                      "%5 = medley.step_share.default(%4, b, b)",
                                      "%6 = aten.add.Tensor(%3, %5, 1)",
                                      "output loss %6"}));
}

// An op that is not linear in a sum over parameters is unchanged.
TEST(StepSums, ARootOfASumOfParametersCouples) {
  const Graph graph = graph_of(R"(%0 = parameter "w" : f32[4]
%1 = batch "x" : f32[b, 4]
%2 = aten.mul.Tensor(%1, %0) : f32[b, 4] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
%4 = aten.sqrt.default(%3) : f32[] @forward ""
output loss %4
)");
  EXPECT_EQ(with_step_sums(graph), graph);
  EXPECT_EQ(row_coupling(graph, factorize(graph)), "rows meet in /sqrt#0");
}

}  // namespace
}  // namespace medley
