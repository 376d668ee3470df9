// Lowered plans of devices with different compute types.

#include <gmock/gmock.h>

#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/memory/memory.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

// Returns relu(x A B) in bf16, with its sum as loss. The gradient is deliberately of another
// function.
Graph two_products() {
  return parse_graph(R"(medley-graph 1
graph "g"
symbols b
%0 = parameter "A" : f32[4, 6]
%1 = parameter "B" : f32[6, 2]
%2 = batch "x" : f32[b, 4]
%3 = aten._to_copy.default(%2, bf16, none, none, none, false, none) : bf16[b, 4] @forward "first"
%4 = aten._to_copy.default(%0, bf16, none, none, none, false, none) : bf16[4, 6] @forward "first"
%5 = aten.mm.default(%3, %4) : bf16[b, 6] @forward "first"
%6 = aten._to_copy.default(%1, bf16, none, none, none, false, none) : bf16[6, 2] @forward "second"
%7 = aten.mm.default(%5, %6) : bf16[b, 2] @forward "second"
%8 = aten.relu.default(%7) : bf16[b, 2] @forward "second"
%9 = aten._to_copy.default(%8, f32, none, none, none, false, none) : f32[b, 2] @forward "second"
%10 = aten.sum.default(%9, none) : f32[] @forward "second"
%11 = aten.full.default(sizes[], 1.0, f32, none, none, none) : f32[] @backward ""
%12 = medley.loss_scale.default(%11) : f32[] @backward ""
%13 = aten.expand.default(%12, [b, 2], false) : f32[b, 2] @backward "second"
%14 = aten._to_copy.default(%13, bf16, none, none, none, false, none) : bf16[b, 2] @backward "second"
%15 = aten.t.default(%5) : bf16[6, b] @backward "second"
%16 = aten.mm.default(%15, %14) : bf16[6, 2] @backward "second"
%17 = aten.t.default(%6) : bf16[2, 6] @backward "second"
%18 = aten.mm.default(%14, %17) : bf16[b, 6] @backward "second"
%19 = aten.t.default(%3) : bf16[4, b] @backward "first"
%20 = aten.mm.default(%19, %18) : bf16[4, 6] @backward "first"
%21 = aten._to_copy.default(%16, f32, none, none, none, false, none) : f32[6, 2] @backward "second"
%22 = aten._to_copy.default(%20, f32, none, none, none, false, none) : f32[4, 6] @backward "first"
output loss %10
output gradient "A" %22
output gradient "B" %21
)",
                     "g.graph");
}

Cluster of_types(const std::vector<DType>& types) {
  Cluster cluster;
  for (size_t i = 0; i < types.size(); ++i) {
    NodePool pool;
    pool.name = pool.kind.name = std::string(1, static_cast<char>('a' + i));
    pool.kind.bf16_as = types[i];
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Stage on(const std::vector<std::string>& devices) {
  Stage stage;
  stage.mesh = {{"data"}, {static_cast<int64_t>(devices.size())}, devices};
  return stage;
}

Plan plan_of(std::vector<Stage> stages, std::vector<int64_t> lengths = {}) {
  Plan plan;
  plan.global_batch = 4;
  plan.parts = {{"inner", {}, {1, 2}}};
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches = {{4, std::move(lengths)}};
  plan.pipelines[0].stages = std::move(stages);
  return plan;
}

// The middle dim is divided, so the second matmul gives a partial sum.
Plan tensors() {
  Stage stage = on({"a/0/0", "b/0/0"});
  stage.placements = {{"A", "S(1, inner)"}, {"B", "S(0, inner)"}};
  return plan_of({stage});
}

std::set<DType> exchanged(const Program& program) {
  std::set<DType> types;
  for (const LoweredStage& stage : program.stages)
    for (const Communication& communication : stage.communications)
      types.insert(type_of(stage.graph, any_value(communication)).dtype);
  return types;
}

Program lowered(const Plan& plan, const std::vector<DType>& types) {
  return lower(two_products(), plan, of_types(types), Optimizer{});
}

constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16, kF32 = DType::kF32;

TEST(LowerTypes, CrossingValueHasOneType) {
  EXPECT_THAT(exchanged(lowered(tensors(), {kBF16, kBF16})), IsSupersetOf({kBF16}));
  EXPECT_THAT(exchanged(lowered(tensors(), {kF16, kF16})), IsSupersetOf({kF16}));
  for (const std::vector<DType>& unlike :
       {std::vector{kBF16, kF16}, {kF16, kF32}, {kF32, kBF16}, {kF32, kF32}}) {
    const std::set<DType> types = exchanged(lowered(tensors(), unlike));
    EXPECT_TRUE(types.contains(kF32));
    EXPECT_FALSE(types.contains(kBF16) || types.contains(kF16));
  }
}

TEST(LowerTypes, StageTransferHasOneType) {
  Stage second = on({"b/0/0"});
  second.first = "second/_to_copy#0";
  const Plan plan = plan_of({on({"a/0/0"}), second});
  EXPECT_THAT(exchanged(lowered(plan, {kBF16, kBF16})), IsSupersetOf({kBF16}));
  EXPECT_THAT(exchanged(lowered(plan, {kF16, kF16})), IsSupersetOf({kF16}));
  // Half of the bytes of f32 and equal values: rounding to f16 happens on one of both ends.
  for (const auto& types : {std::vector{kBF16, kF16}, {kF16, kBF16}, {kF32, kF16}}) {
    const Program program = lowered(plan, types);
    EXPECT_THAT(exchanged(program), AllOf(Contains(kF16), Not(Contains(kBF16)))) << print(program);
  }
  const Program program = lowered(plan, {kBF16, kF32});
  const std::set<DType> types = exchanged(program);
  EXPECT_FALSE(types.contains(kBF16) || types.contains(kF16)) << print(program);
}

TEST(LowerTypes, ADeviceOfF16HasTheLossScaled) {
  const Plan rows = plan_of({on({"a/0/0", "b/0/0"})}, {3, 1});
  const std::string with = print(lowered(rows, {kBF16, kF16})),
                    without = print(lowered(rows, {kBF16, kF32}));
  EXPECT_THAT(with, HasSubstr("bf16 as bf16, f16\n"));
  EXPECT_THAT(with, HasSubstr("state \"loss_scale\" : f64[4]"));
  EXPECT_THAT(with, HasSubstr("medley.scale_loss.default"));
  // The devices agree on the norm, and so on whether the step counts.
  EXPECT_THAT(with, HasSubstr("all_reduce norm/sum over stages"));
  EXPECT_THAT(without, Not(HasSubstr("loss_scale\"")));
  EXPECT_THAT(without, HasSubstr("medley.loss_scale.default"));
  LowerOptions elastic;
  elastic.commit = true;
  const Program program =
      lower(two_products(), rows, of_types({kBF16, kF16}), Optimizer{}, elastic);
  EXPECT_NE(program.stages[0].commit, kNone);
}

// On a device that computes bf16 values in f32 they take twice the memory.
TEST(LowerTypes, MemoryIsThatOfTheType) {
  Plan rows = plan_of({on({"a/0/0", "b/0/0"})});
  rows.global_batch = 400;  // activations exceed gradients
  rows.pipelines[0].microbatches = {{400, {200, 200}}};
  const Program program = lowered(rows, {kBF16, kF32});
  const MemoryUse half = memory_use(program.stages[0], 0), full = memory_use(program.stages[0], 1);
  EXPECT_EQ(half.persistent, full.persistent);
  EXPECT_GT(full.peak, half.peak);
  const std::vector<MemoryUse> all = memory_uses(program.stages[0]);
  EXPECT_EQ(all[0].peak, half.peak);
  EXPECT_EQ(all[1].peak, full.peak);
}

TEST(LowerTypes, Bf16CrossingIsRefused) {
  Program program = lowered(tensors(), {kF16, kF16});
  LoweredStage& stage = program.stages[0];
  for (const Communication& communication : stage.communications)
    for (const auto* values : {&communication.inputs, &communication.outputs})
      for (ValueId value : *values) {
        DType& dtype = stage.graph.values[at(value)].type.dtype;
        if (dtype == kF16) dtype = kBF16;
      }
  EXPECT_THAT([&] { verify(program); },
              ::testing::ThrowsMessage<Error>(HasSubstr("found bf16 between devices")));
}

}  // namespace
}  // namespace medley
