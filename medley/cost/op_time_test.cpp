#include "medley/cost/op_time.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"

namespace medley {
namespace {

using ::testing::HasSubstr;

DeviceKind kind() {
  return {"x",
          {{DType::kF32, 1e12}, {DType::kBF16, 8e12}},
          {{DType::kF32, 1e12}, {DType::kBF16, 8e12}},
          1e9,
          1e11,
          1e-6};
}

// 1 us to launch; then 1e9 flops at 1e12 flop/s take 1 ms, 1e6 bytes at 1e11 B/s take 10 us. The
// longer one counts.
TEST(OpTime, IsTheRoofPlusTheLaunch) {
  EXPECT_EQ(op_time(kind(), WorkClass::kMatmul, {1e9, 1e6}, DType::kF32), Nanoseconds{1'001'000});
  EXPECT_EQ(op_time(kind(), WorkClass::kMatmul, {1e9, 1e6}, DType::kBF16), Nanoseconds{126'000});
  EXPECT_EQ(op_time(kind(), WorkClass::kMemory, {1e6, 1e6}, DType::kF32), Nanoseconds{11'000});
  EXPECT_EQ(op_time(kind(), WorkClass::kMemory, {0, 1e6}, DType::kI64), Nanoseconds{11'000});
}

TEST(OpTime, ViewsAndEmptyShardsAreFree) {
  EXPECT_EQ(op_time(kind(), WorkClass::kView, {0, 1e6}, DType::kF32), Nanoseconds{0});
  EXPECT_EQ(op_time(kind(), WorkClass::kMatmul, {0, 0}, DType::kF32), Nanoseconds{0});
}

TEST(OpTime, AMissingRateNamesKindAndDtype) {
  try {
    op_time(kind(), WorkClass::kMatmul, {1, 1}, DType::kF16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_THAT(error.what(), HasSubstr("device type x: has no sustained rate for: f16"));
  }
}

// mm of [b, 4] and [4, 8]: 2 * b * 4 * 8 flops, 4 * (4 b + 32 + 8 b) bytes.
TEST(OpTime, ReadsWorkFromTheGraph) {
  Graph graph;
  graph.symbols = {"b"};
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {DType::kF32, {Size::of(0), 4}});
  const ValueId w = add_input(graph, InputKind::kParameter, "w", {DType::kF32, {4, 8}});
  Op mm;
  mm.name = "aten.mm.default";
  mm.arguments = {ValueArgument{x}, ValueArgument{w}};
  add_op(graph, mm, {{DType::kF32, {Size::of(0), 8}}});
  const OpWork work = op_work(graph, graph.ops[0], {100});
  EXPECT_EQ(work.work_class, WorkClass::kMatmul);
  EXPECT_EQ(work.work.flops, 2 * 100 * 4 * 8);
  EXPECT_EQ(work.work.bytes, 4 * (100 * 4 + 32 + 100 * 8));
  EXPECT_EQ(work.dtype, DType::kF32);
  EXPECT_EQ(op_time(kind(), graph, graph.ops[0], {100}),
            op_time(kind(), work.work_class, work.work, work.dtype));
}

// The replacement of bf16 has its own rate and its own bytes.
TEST(OpTime, IsThatOfTheTypeThatTheKindComputesIn) {
  Graph graph;
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {DType::kBF16, {64, 64}});
  Op mm;
  mm.name = "aten.mm.default";
  mm.arguments = {ValueArgument{x}, ValueArgument{x}};
  add_op(graph, mm, {{DType::kBF16, {64, 64}}});
  DeviceKind pascal = kind();
  pascal.bf16_as = DType::kF32;
  const double flops = 2 * 64 * 64 * 64, elements = 3 * 64 * 64;
  EXPECT_EQ(op_time(kind(), graph, graph.ops[0], {}),
            op_time(kind(), WorkClass::kMatmul, {flops, 2 * elements}, DType::kBF16));
  EXPECT_EQ(op_time(pascal, graph, graph.ops[0], {}),
            op_time(kind(), WorkClass::kMatmul, {flops, 4 * elements}, DType::kF32));
}

}  // namespace
}  // namespace medley
