#include "medley/ops/localize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/graph/text.h"
#include "medley/ops/instance.h"
#include "medley/ops/one_op.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

// An op of a whole graph, and the local form of a shard of it.
class Local {
 public:
  Local(const std::vector<std::string>& inputs, const std::string& op_text)
      : graph_(one_op(inputs, op_text)) {
    instance_ = instantiate(graph_, graph_.ops[0]).value();
    form_.global = &graph_;
    form_.op = &graph_.ops[0];
    form_.instance = &instance_;
    for (ValueId value : operands(graph_.ops[0]))
      form_.operands.push_back(value == kNone ? TensorType() : type_of(graph_, value));
    for (ValueId value : graph_.ops[0].results) form_.results.push_back(type_of(graph_, value));
  }

  // Cuts the label (its first factor, alone) to `length`, starting at `offset` of `full`.
  Local& cut(std::string_view label) {
    for (size_t i = 0; i < instance_.labels.size(); ++i)
      if (instance_.labels[i].name == label)
        form_.cuts = {
            {{static_cast<int>(i), 0}, Size::of(1), Size::of(2), instance_.labels[i].size}};
    return *this;
  }
  Local& operand(size_t i, std::vector<Size> shape) {
    form_.operands.at(i).shape = std::move(shape);
    return *this;
  }
  Local& result(size_t j, std::vector<Size> shape) {
    form_.results.at(j).shape = std::move(shape);
    return *this;
  }
  LocalForm& form() { return form_; }

  // Returns the text of the local op without its results: "aten.view.default(%0, [length, 8])".
  std::string text() {
    Graph local = graph_;
    find_rule(local.ops[0].name)->localize(local.ops[0], form_);
    const std::string all = print(local);
    const size_t begin = all.find(" = ", all.rfind("\n%")) + 3;
    return all.substr(begin, all.find(" : ", begin) - begin);
  }

 private:
  Graph graph_;
  Instance instance_;
  LocalForm form_;
};

const Size kLength = Size::of(1);

TEST(Localize, ViewTakesTheLocalShape) {
  EXPECT_EQ(Local({"f32[b, 192]"}, "aten.view.default(%0, [b, 3, 4, 16]) : f32[b, 3, 4, 16]")
                .cut("d2")
                .result(0, {Size::of(0), 3, kLength, 16})
                .text(),
            "aten.view.default(%0, [b, 3, length, 16])");
}

// squeeze would also drop a dim whose shard happens to have one row.
TEST(Localize, SqueezeNamesItsShape) {
  EXPECT_EQ(Local({"f32[8, 1]"}, "aten.squeeze.default(%0) : f32[8]")
                .cut("d0")
                .result(0, {kLength})
                .text(),
            "aten.view.default(%0, [length])");
}

TEST(Localize, RepeatCountsTheShard) {
  EXPECT_EQ(Local({"f32[4, 1]"}, "aten.repeat.default(%0, [3, 8]) : f32[12, 8]")
                .cut("d2")
                .result(0, {12, kLength})
                .text(),
            "aten.repeat.default(%0, [3, length])");
  EXPECT_EQ(Local({"f32[4, 1]"}, "aten.repeat.default(%0, [3, 8]) : f32[12, 8]")
                .cut("d0")
                .result(0, {kLength * Size(4), 8})
                .text(),
            "aten.repeat.default(%0, [length, 8])");
}

TEST(Localize, SliceOfEverythingEndsWithTheShard) {
  const std::vector<std::string> x = {"f32[b, 8]"};
  EXPECT_EQ(Local(x, "aten.slice.Tensor(%0, 1, 0, 8, 1) : f32[b, 8]")
                .cut("d1")
                .result(0, {Size::of(0), kLength})
                .text(),
            "aten.slice.Tensor(%0, 1, 0, length, 1)");
  EXPECT_EQ(Local(x, "aten.slice.Tensor(%0, 1, 2, 8, 1) : f32[b, 6]")
                .cut("d0")
                .result(0, {kLength, 6})
                .text(),
            "aten.slice.Tensor(%0, 1, 2, 8, 1)");
  EXPECT_EQ(Local({"f32[b, 6]"}, "aten.slice_backward.default(%0, [b, 8], 1, 2, 8, 1) : f32[b, 8]")
                .cut("d0")
                .result(0, {kLength, 8})
                .text(),
            "aten.slice_backward.default(%0, [length, 8], 1, 2, 8, 1)");
}

TEST(Localize, SplitTakesTheSizeOfItsPieces) {
  Local local({"f32[b, 12]"}, "aten.split.Tensor(%0, 4, 1) : f32[b, 4], f32[b, 4], f32[b, 4]");
  for (size_t j = 0; j < 3; ++j) local.result(j, {Size::of(0), kLength});
  EXPECT_EQ(local.cut("d2").text(), "aten.split.Tensor(%0, length, 1)");
}

// A mean's divisor is the whole count: a mean of means is wrong for unequal shards.
TEST(Localize, MeanDividesByTheWholeCount) {
  Local local({"f32[b, 8, 4]"}, "aten.mean.dim(%0, [0, -1], true, none) : f32[1, 8, 1]");
  EXPECT_EQ(local.text(), "aten.mean.dim(%0, [0, -1], true, none)");
  EXPECT_EQ(local.cut("d0").operand(0, {kLength, 8, 4}).text(),
            "medley.mean.default(%0, [0, 2], true, none, b*4)");
  EXPECT_EQ(local.cut("d1").operand(0, {Size::of(0), kLength, 4}).text(),
            "aten.mean.dim(%0, [0, -1], true, none)");
  // Two axes cut two of its dims: the remaining one affects no count.
  LocalCut first = local.cut("d0").form().cuts[0];
  local.cut("d1").operand(0, {kLength, kLength, 4}).form().cuts.push_back(first);
  EXPECT_EQ(local.text(), "medley.mean.default(%0, [0, 2], true, none, b*4)");
}

TEST(Localize, SelectLabelsTakeAnOffset) {
  const std::vector<std::string> x = {"f32[256, 8]", "i64[b]"};
  Local embedding(x, "aten.embedding.default(%0, %1, -1, false, false) : f32[b, 8]");
  EXPECT_EQ(embedding.cut("e").text(), "aten.embedding.default(%0, %1, -1, false, false)");
  EXPECT_EQ(embedding.cut("v").text(), "medley.embedding_select.default(%0, %1, offset)");
  // The leading one of the vocabulary's factors (32, 8) is cut: an offset counts eight rows.
  embedding.form().cuts[0].behind = Size(8);
  EXPECT_EQ(embedding.text(), "medley.embedding_select.default(%0, %1, offset*8)");

  Local backward({"f32[b, 8]", "i64[b]"},
                 "aten.embedding_dense_backward.default(%0, %1, 256, -1, false) : f32[256, 8]");
  EXPECT_EQ(backward.cut("v").result(0, {kLength, 8}).text(),
            "medley.embedding_backward_select.default(%0, %1, length, -1, false, offset)");

  Local nll({"f32[b, 256]", "i64[b]"},
            "aten.nll_loss_forward.default(%0, %1, none, 2, -100) : f32[], f32[]");
  EXPECT_EQ(nll.cut("n").text(), "aten.nll_loss_forward.default(%0, %1, none, 2, -100)");
  EXPECT_EQ(nll.cut("v").text(), "medley.nll_select.default(%0, %1, none, 2, -100, offset)");
}

TEST(Localize, FactoriesNeedNoOperand) {
  EXPECT_EQ(Local({"bf16[b, 8]"},
                  "aten.zeros_like.default(%0, none, none, none, none, none) : bf16[b, 8]")
                .cut("d0")
                .result(0, {kLength, 8})
                .text(),
            "aten.full.default([length, 8], 0, bf16, none, none, none)");
  EXPECT_EQ(
      Local({"f32[4]"}, "aten.new_full.default(%0, [b], 2.5, none, none, none, none) : f32[b]")
          .cut("d0")
          .result(0, {kLength})
          .text(),
      "aten.full.default([length], 2.5, f32, none, none, none)");
}

TEST(Localize, ArangeTakesItsBox) {
  Local local({"f32[4]"}, "aten.arange.start_step(2, 26, 2, none, none, none, none) : i64[12]");
  local.cut("d0").result(0, {Size(3) * kLength});
  // The second of the factors (3, 4) is cut: the shard is strided.
  local.form().cuts[0].cut.factor = 1;
  local.form().cuts[0].full = Size(4);
  local.form().factor_sizes = {3, kLength};
  EXPECT_EQ(local.text(),
            "medley.arange_shard.default(2, 2, [3, length], [0, offset], [3, 4], i64)");
}

// Rows of a micro-batch are counted over the global batch.
TEST(Localize, ArangeCountsRowsOfTheBatch) {
  Local local({"f32[4]"}, "aten.arange.default(b, none, none, none, none) : i64[b]");
  local.form().factor_sizes = {Size::of(0)};
  local.form().factor_offsets = {kLength};
  local.form().factor_fulls = {64};
  EXPECT_EQ(local.text(), "medley.arange_shard.default(0, 1, [b], [0], [b], i64)");
  local.form().counted_rows = 0;
  EXPECT_EQ(local.text(), "medley.arange_shard.default(0, 1, [b], [length], [64], i64)");
}

TEST(Localize, GroupsFollowChannels) {
  Local local(
      {"f32[b, 8, 5]", "f32[16, 2, 3]"},
      "aten.convolution.default(%0, %1, none, [1], [1], [1], false, [0], 4) : f32[b, 16, 5]");
  local.cut("g")
      .operand(0, {Size::of(0), Size(2) * kLength, 5})
      .operand(1, {Size(4) * kLength, 2, 3});
  EXPECT_EQ(local.text(),
            "aten.convolution.default(%0, %1, none, [1], [1], [1], false, [0], length)");
}

TEST(Localize, DropoutTakesItsBoxInFactors) {
  Local local({"f32[b, 8]", "i64[2]"},
              "medley.dropout.default(%0, %1, 0.1, 7, [b, 8], [0, 0], [b, 8]) : f32[b, 8]");
  local.cut("d0");
  local.form().factor_sizes = {kLength, 8};
  local.form().factor_offsets = {Size::of(2), 0};
  local.form().factor_fulls = {Size::of(3), 8};
  EXPECT_EQ(local.text(),
            "medley.dropout.default(%0, %1, 0.1, 7, [length, 8], [offset, 0], [full, 8])");
}

// The box is in factors; the shape is that of the tensor.
TEST(Localize, RandomNumbersTakeTheirBoxAndShape) {
  Local local({"i64[2]"},
              "medley.random.default(%0, \"normal\", 7, [b, 1, 8], sizes[], sizes[], sizes[], f32)"
              " : f32[b, 1, 8]");
  local.cut("d0").result(0, {kLength, 1, 8});
  local.form().factor_sizes = {kLength, 8};
  local.form().factor_offsets = {Size::of(2), 0};
  local.form().factor_fulls = {Size::of(3), 8};
  EXPECT_EQ(local.text(),
            "medley.random.default(%0, \"normal\", 7, [length, 1, 8], [length, 8], [offset, 0], "
            "[full, 8], f32)");
}

TEST(Localize, EveryOpWithSizesHasALocalForm) {
  for (std::string_view name : {"aten.view.default",
                                "aten._unsafe_view.default",
                                "aten.expand.default",
                                "aten.zeros.default",
                                "aten.select_backward.default",
                                "aten.slice_backward.default",
                                "aten.native_group_norm.default"})
    EXPECT_NE(find_rule(name)->localize, nullptr) << name;
}

}  // namespace
}  // namespace medley
