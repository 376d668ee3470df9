#include "medley/measure/single_op.h"

#include <gmock/gmock.h>

#include "medley/graph/text.h"
#include "medley/measure/wanted.h"
#include "medley/ops/one_op.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<int64_t>> shapes(const Graph& graph) {
  std::vector<std::vector<int64_t>> result;
  for (const Value& value : graph.values) {
    auto& shape = result.emplace_back();
    for (const Size& size : value.type.shape) {
      EXPECT_TRUE(size.is_constant());
      shape.push_back(size.coefficient);
    }
  }
  return result;
}

using Shape = std::vector<int64_t>;

TEST(SingleOp, FillsInTheSymbols) {
  const Graph graph = one_op({"f32[b, 4, 6]"}, "aten.view.default(%0, [b*4, 6]) : f32[b*4, 6]");
  const Graph single = single_op(graph, graph.ops[0], {5, 0, 0, 0});
  EXPECT_THAT(shapes(single), ElementsAre(Shape{5, 4, 6}, Shape{20, 6}));
  EXPECT_EQ(std::get<std::vector<Size>>(single.ops[0].arguments[1]), (std::vector<Size>{20, 6}));
}

// A value that is read twice is one operand: it is one tensor in memory.
TEST(SingleOp, KeepsWhatIsTheSame) {
  const Graph graph = one_op({"f32[4]"}, "aten.mul.Tensor(%0, %0) : f32[4]");
  EXPECT_THAT(single_op(graph, graph.ops[0], {1, 0, 0, 0}).inputs.size(), 1);
}

// The header's example; 511 does not divide evenly: the larger shard is taken.
TEST(SingleOp, ShardsAlongEveryLabel) {
  const Graph graph =
      one_op({"f32[96, 511]", "f32[511, 64]"}, "aten.mm.default(%0, %1) : f32[96, 64]");
  const std::vector<Graph> halves = shards(single_op(graph, graph.ops[0], {1, 0, 0, 0}), 2);
  std::vector<std::vector<Shape>> found;
  for (const Graph& half : halves) found.push_back(shapes(half));
  EXPECT_THAT(found,
              ElementsAre(ElementsAre(Shape{48, 511}, Shape{511, 64}, Shape{48, 64}),
                          ElementsAre(Shape{96, 256}, Shape{256, 64}, Shape{96, 64}),
                          ElementsAre(Shape{96, 511}, Shape{511, 32}, Shape{96, 32})));
  EXPECT_THAT(shards(single_op(graph, graph.ops[0], {1, 0, 0, 0}), 1024), IsEmpty());
}

// Its sizes are arguments, too.
TEST(SingleOp, ShardsOfLayoutOpsHaveLocalArguments) {
  const Graph graph = one_op({"f32[8, 1]"}, "aten.expand.default(%0, [8, 6], false) : f32[8, 6]");
  const Graph half = shards(single_op(graph, graph.ops[0], {1, 0, 0, 0}), 2).at(0);
  EXPECT_EQ(std::get<std::vector<Size>>(half.ops[0].arguments[1]), (std::vector<Size>{4, 6}));
}

// All are ops with rules and the promised work: a factor of two apart.
TEST(Ladder, DoublesTheWork) {
  for (WorkClass kind : {WorkClass::kMatmul, WorkClass::kMemory, WorkClass::kAttention}) {
    const std::vector<Graph> rungs = ladder(kind, DType::kF32, 1 << 14, 1 << 20);
    EXPECT_EQ(rungs.size(), 7);
    double expected = 1 << 14;
    for (const Graph& rung : rungs) {
      const Op& op = rung.ops[0];
      std::vector<TensorType> ins, outs;
      for (ValueId value : operands(op))
        ins.push_back(value == kNone ? TensorType{} : type_of(rung, value));
      for (ValueId value : op.results) outs.push_back(type_of(rung, value));
      const Work found = work(op, ins, outs, {});
      EXPECT_EQ(work_class(op.name), kind);
      EXPECT_EQ(kind == WorkClass::kMemory ? found.bytes : found.flops, expected);
      expected *= 2;
    }
  }
  EXPECT_EQ(ladder(WorkClass::kConvolution, DType::kF32, 1 << 14, 1 << 20).size(), 7);
}

}  // namespace
}  // namespace medley
