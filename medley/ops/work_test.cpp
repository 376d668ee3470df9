#include <gtest/gtest.h>

#include "medley/ops/localize.h"
#include "medley/ops/one_op.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// Returns the work of an op on inputs of these types, for b = 2.
Work work_of(const std::vector<std::string>& inputs, const std::string& op_text) {
  const Graph graph = one_op(inputs, op_text);
  const Op& op = graph.ops[0];
  std::vector<TensorType> from, to;
  for (ValueId value : operands(op)) from.push_back(type_of(graph, value));
  for (ValueId value : op.results)
    to.push_back(value == kNone ? TensorType() : type_of(graph, value));
  return work(op, from, to, {2});
}

TEST(Work, Matmul) {
  const Work mm = work_of({"f32[b, 3]", "f32[3, 5]"}, "aten.mm.default(%0, %1) : f32[b, 5]");
  EXPECT_EQ(mm.flops, 2 * 2 * 3 * 5);
  EXPECT_EQ(mm.bytes, 4 * (2 * 3 + 3 * 5 + 2 * 5));
}

TEST(Work, CausalAttentionIsHalf) {
  const std::vector<std::string> qkv = {"f32[b, 4, 8, 16]", "f32[b, 2, 8, 16]", "f32[b, 2, 8, 16]"};
  const std::string rest = ", 0.25) : f32[b, 4, 8, 16], f32[b, 4, 8]";
  EXPECT_EQ(work_of(qkv, "medley.attention.default(%0, %1, %2, none, false" + rest).flops,
            4 * 2 * 4 * 8 * 8 * 16);
  EXPECT_EQ(work_of(qkv, "medley.attention.default(%0, %1, %2, none, true" + rest).flops,
            2 * 2 * 4 * 8 * 8 * 16);
}

// Two of four experts have half of the choices, by the number of all experts.
TEST(Work, AShardOfExpertsHasItsShareOfTheTokens) {
  const auto flops = [](const std::string& local) {
    return work_of({"f32[b, 3]",
                    "i64[b, 2]",
                    "f32[b, 2]",
                    "f32[" + local + ", 10, 3]",
                    "f32[" + local + ", 3, 5]"},
                   "medley.experts.default(%0, %1, %2, %3, %4, \"silu\", 0, 4) : f32[b, 3]")
        .flops;
  };
  EXPECT_EQ(flops("4"), 2 * (2 * 2) * (10 * 3 + 3 * 5));
  EXPECT_EQ(flops("2"), flops("4") / 2);
  EXPECT_EQ(flops("0"), 0);
}

TEST(Work, ConvolutionBackwardCountsTheGradientsItMakes) {
  const std::vector<std::string> inputs = {"f32[b, 6, 5]", "f32[b, 4, 5]", "f32[6, 4, 3]"};
  const std::string op =
      "aten.convolution_backward.default(%0, %1, %2, none, [1], [1], [1], false, [0], 1, ";
  const double once = 2 * (2 * 6 * 5) * (4 * 3);
  EXPECT_EQ(work_of(inputs, op + "[true, true, false]) : f32[b, 4, 5], f32[6, 4, 3], none").flops,
            2 * once);
  EXPECT_EQ(work_of(inputs, op + "[false, true, false]) : none, f32[6, 4, 3], none").flops, once);
}

TEST(Work, ViewsAreFreeAndLookUpsReadRows) {
  EXPECT_EQ(work_of({"f32[b, 4]"}, "aten.t.default(%0) : f32[4, b]").bytes, 0);
  EXPECT_EQ(work_of({"f32[1000, 4]", "i64[b]"},
                    "aten.embedding.default(%0, %1, -1, false, false) : f32[b, 4]")
                .bytes,
            2 * (4 * 2 * 4) + 8 * 2);
}

}  // namespace
}  // namespace medley
