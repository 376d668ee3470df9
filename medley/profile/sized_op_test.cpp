#include "medley/profile/sized_op.h"

#include <gmock/gmock.h>

#include "medley/ops/one_op.h"

namespace medley {
namespace {

// Returns the key of an op with b = 96 and offset = 32.
std::string key_of(const std::vector<std::string>& inputs, const std::string& op) {
  const Graph graph = one_op(inputs, op);
  const std::vector<int64_t> symbols{96, 48, 32, 200};
  const SizedOp sized = sized_op(graph, graph.ops.at(0), symbols);
  EXPECT_EQ(key_hash(graph, graph.ops[0], symbols), key_hash(sized.key));
  EXPECT_EQ(sized.op, graph.ops[0].name);
  return sized.key;
}

TEST(SizedOp, KeyHasTypesAndArguments) {
  EXPECT_EQ(key_of({"f32[b, 512]", "f32[512, 64]"}, "aten.mm.default(%0, %1) : f32[b, 64]"),
            "aten.mm.default(f32[96,512], f32[512,64]) -> f32[96,64]");
  EXPECT_EQ(key_of({"f32[b, 512]"}, "aten.sum.dim_IntList(%0, [0], false, none) : f32[512]"),
            "aten.sum.dim_IntList(f32[96,512], [0], false, none) -> f32[512]");
  EXPECT_EQ(key_of({"f32[b, 512]"}, "aten.mul.Scalar(%0, 0.5) : f32[b, 512]"),
            "aten.mul.Scalar(f32[96,512], 0.5) -> f32[96,512]");
}

// Two shards of equal size are one measurement, for any offsets.
TEST(SizedOp, SizesAndOffsetsAmongTheArgumentsAreLeftOut) {
  EXPECT_EQ(key_of({"f32[100, 8]", "i64[b]"},
                   "medley.embedding_select.default(%0, %1, offset) : f32[b, 8]"),
            "medley.embedding_select.default(f32[100,8], i64[96], _) -> f32[96,8]");
  EXPECT_EQ(key_of({}, "aten.full.default([b, 4], 1.0, f32, none, none, none) : f32[b, 4]"),
            "aten.full.default(_, 1, f32, none, none, none) -> f32[96,4]");
}

// Strides are no sizes.
TEST(SizedOp, StridesOfConvolutionsStay) {
  EXPECT_EQ(key_of({"f32[b, 4, 8, 8]", "f32[6, 4, 3, 3]"},
                   "aten.convolution.default(%0, %1, none, [2, 2], [1, 1], [1, 1], false, [0, 0], "
                   "1) : f32[b, 6, 4, 4]"),
            "aten.convolution.default(f32[96,4,8,8], f32[6,4,3,3], none, [2,2], [1,1], [1,1], "
            "false, [0,0], 1) -> f32[96,6,4,4]");
}

TEST(SizedOp, AnAbsentResultIsNone) {
  EXPECT_EQ(key_of({"f32[b, 6, 8, 8]", "f32[b, 4, 8, 8]", "f32[6, 4, 3, 3]"},
                   "aten.convolution_backward.default(%0, %1, %2, none, [1, 1], [1, 1], [1, 1], "
                   "false, [0, 0], 1, [false, true, false]) : none, f32[6, 4, 3, 3], none"),
            "aten.convolution_backward.default(f32[96,6,8,8], f32[96,4,8,8], f32[6,4,3,3], none, "
            "[1,1], [1,1], [1,1], false, [0,0], 1, [false,true,false]) -> none, f32[6,4,3,3], "
            "none");
}

// mm of [b, 4] and [4, 8]: 2 * b * 4 * 8 flops, 4 * (4 b + 32 + 8 b) bytes.
TEST(SizedOp, ReadsWorkFromTheGraph) {
  const Graph graph = one_op({"f32[b, 4]", "f32[4, 8]"}, "aten.mm.default(%0, %1) : f32[b, 8]");
  const OpWork work = op_work(graph, graph.ops[0], {100});
  EXPECT_EQ(work,
            (OpWork{WorkClass::kMatmul, {2 * 100 * 4 * 8, 4 * (400 + 32 + 800)}, DType::kF32}));
  const SizedOp sized = sized_op(graph, graph.ops[0], {100});
  EXPECT_EQ((OpWork{sized.work_class, sized.work, sized.dtype}), work);
}

}  // namespace
}  // namespace medley
