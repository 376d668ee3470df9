#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/at.h"
#include "medley/graph/text.h"
#include "medley/ops/instance.h"
#include "medley/ops/one_op.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

// Returns the lines of the ops that replace the op.
std::string expansion_of(const std::vector<std::string>& inputs, const std::string& op) {
  Graph graph = one_op(inputs, op);
  const size_t before = graph.values.size();
  EXPECT_TRUE(has_expansion(graph.ops[0].name));
  const auto results = expand(graph, graph.ops[0]);
  for (size_t j = 0; j < results.size(); ++j) {
    if (results[j] == kNone) continue;
    const Value& value = graph.values.at(at(results[j]));
    EXPECT_EQ(value.type, graph.values.at(at(graph.ops[0].results[j])).type) << j;
  }
  for (size_t i = 1; i < graph.ops.size(); ++i) {
    const auto instance = instantiate(graph, graph.ops[i]);
    EXPECT_TRUE(instance.has_value()) << graph.ops[i].name;
    for (const Label& label : instance->labels) EXPECT_FALSE(label.locked) << graph.ops[i].name;
  }
  const std::string text = print(graph);
  return text.substr(text.find("\n%" + std::to_string(before) + " ") + 1);
}

TEST(Expand, LogSoftmaxIsMaxSumAndPointwiseOps) {
  EXPECT_EQ(expansion_of({"f32[b, 8]"}, "aten._log_softmax.default(%0, 1, false) : f32[b, 8]"),
            R"(%2 = aten.amax.default(%0, [1], true) : f32[b, 1] @forward ""
%3 = aten.sub.Tensor(%0, %2, 1) : f32[b, 8] @forward ""
%4 = aten.exp.default(%3) : f32[b, 8] @forward ""
%5 = aten.sum.dim_IntList(%4, [1], true, none) : f32[b, 1] @forward ""
%6 = aten.log.default(%5) : f32[b, 1] @forward ""
%7 = aten.sub.Tensor(%3, %6, 1) : f32[b, 8] @forward ""
)");
}

TEST(Expand, HalfPrecisionIsComputedInSingle) {
  const std::string text =
      expansion_of({"bf16[b, 8]"}, "aten._softmax.default(%0, -1, false) : bf16[b, 8]");
  EXPECT_THAT(text, ::testing::HasSubstr("aten.exp.default(%4) : f32[b, 8]"));
  EXPECT_THAT(text, ::testing::EndsWith(": bf16[b, 8] @forward \"\"\n"));
}

TEST(Expand, SoftmaxBackward) {
  EXPECT_EQ(expansion_of({"f32[b, 8]", "f32[b, 8]"},
                         "aten._softmax_backward_data.default(%0, %1, 1, f32) : f32[b, 8]"),
            R"(%3 = aten.mul.Tensor(%0, %1) : f32[b, 8] @forward ""
%4 = aten.sum.dim_IntList(%3, [1], true, none) : f32[b, 1] @forward ""
%5 = aten.sub.Tensor(%0, %4, 1) : f32[b, 8] @forward ""
%6 = aten.mul.Tensor(%5, %1) : f32[b, 8] @forward ""
)");
}

TEST(Expand, BatchNormKeepsTypesAndOptionalResults) {
  const std::vector<std::string> inputs = {
      "f32[b, 4, 8, 8]", "f32[4]", "f32[4]", "f32[4]", "f32[4]"};
  expansion_of(inputs,
               "aten._native_batch_norm_legit_functional.default(%0, %1, %2, %3, %4, true, 0.1, "
               "1e-05) : f32[b, 4, 8, 8], f32[4], f32[4], f32[4], f32[4]");
  expansion_of(inputs,
               "aten.native_batch_norm_backward.default(%0, %0, %1, %3, %4, %2, %3, true, 1e-05, "
               "[false, true, true]) : none, f32[4], f32[4]");
}

}  // namespace
}  // namespace medley
