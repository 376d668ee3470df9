// Buffers that the step changes, in lowered programs: their replacement, and their readers.

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"

namespace medley {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns a scale that forward and backward read and that is halved behind its first reader.
Graph halved(const std::string& read_on_the_way_back = "%1") {
  std::string text = R"(medley-graph 1
graph "halved"
symbols b
%0 = parameter "w" : f32[4, 4]
%1 = buffer "scale" : f32[4]
%2 = batch "x" : f32[b, 4]
%3 = aten.mm.default(%2, %0) : f32[b, 4] @forward "fc"
%4 = aten.mul.Tensor(%3, %1) : f32[b, 4] @forward "scaled"
%5 = aten.exp.default(%4) : f32[b, 4] @forward "act"
%6 = aten.mul.Tensor(%1, 0.5) : f32[4] @forward "changed"
%7 = aten.sum.default(%5, none) : f32[] @forward ""
%8 = aten.mul.Tensor(%5, %1) : f32[b, 4] @backward "scaled"
%9 = aten.t.default(%2) : f32[4, b] @backward "fc"
%10 = aten.mm.default(%9, %8) : f32[4, 4] @backward "fc"
output loss %7
output gradient "w" %10
output buffer "scale" %6
)";
  const std::string read = "aten.mul.Tensor(%5, %1)";
  text.replace(text.find(read), read.size(), "aten.mul.Tensor(%5, " + read_on_the_way_back + ")");
  return parse_graph(text, "halved.graph");
}

Cluster two_devices() {
  Cluster cluster;
  cluster.pools = {{"a", 2, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Plan one_stage(std::vector<Microbatch> microbatches) {
  Plan plan;
  for (const Microbatch& microbatch : microbatches) plan.global_batch += microbatch.rows;
  Stage stage;
  stage.mesh = {{"x"}, {1}, {"a/0/0"}};
  plan.pipelines = {{{}, std::move(microbatches), {stage}}};
  return plan;
}

// The first stage reads the buffer, the second changes it.
Plan two_stages() {
  Plan plan = one_stage({{4, {4}}, {2, {2}}});
  Stage second;
  second.mesh = {{"x"}, {1}, {"a/1/0"}};
  second.first = "act/exp#0";
  plan.pipelines[0].stages.push_back(second);
  return plan;
}

Program lowered(const Plan& plan) { return lower(halved(), plan, two_devices(), {}); }

ValueId scale_of(const LoweredStage& stage) {
  for (const PlacedValue& placed : stage.inputs)
    if (placed.input.kind == InputKind::kBuffer) return placed.input.value;
  return kNone;
}

// Returns the functions that replace the scale.
std::vector<FunctionKind> replacing(const LoweredStage& stage) {
  std::vector<FunctionKind> kinds;
  for (const Function& function : stage.functions)
    for (const Assign& assign : function.assigns)
      if (assign.to == scale_of(stage)) kinds.push_back(function.kind);
  return kinds;
}

std::vector<std::string> transfers(const LoweredStage& stage) {
  std::vector<std::string> names;
  for (const Communication& communication : stage.communications)
    if (communication.kind == CommunicationKind::kTransfer) names.push_back(communication.name);
  return names;
}

std::string refusal(const Program& program) {
  try {
    verify(program);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ChangingBuffers, AreReplacedOnceAStepAtItsEnd) {
  for (const Plan& plan : {one_stage({{4, {4}}}), one_stage({{2, {2}}, {2, {2}}})})
    EXPECT_THAT(replacing(lowered(plan).stages[0]), ElementsAre(FunctionKind::kUpdate));
}

TEST(ChangingBuffers, AreReplacedWithoutAnOptimizer) {
  Optimizer none;
  none.rules.clear();
  const Program program = lower(halved(), one_stage({{4, {4}}}), two_devices(), none);
  EXPECT_THAT(replacing(program.stages[0]), ElementsAre(FunctionKind::kUpdate));
  EXPECT_EQ(program.stages[0].calls.back(), (Call{FunctionKind::kUpdate, 0}));
}

// Each forward call leaves another value to the next; the backward phase has its own.
TEST(ChangingBuffers, ChangeWithMicrobatchesThatAreBatches) {
  Plan plan = one_stage({{2, {2}}, {2, {2}}});
  plan.loss_over_microbatches = true;
  Program program = lowered(plan);
  LoweredStage& stage = program.stages[0];
  EXPECT_THAT(replacing(stage), ElementsAre(FunctionKind::kForward));
  const auto backward = [&](const Op& op) {
    return op.name == "aten.mul.Tensor" && op.phase == Phase::kBackward;
  };
  const auto reader = std::find_if(stage.graph.ops.begin(), stage.graph.ops.end(), backward);
  ValueId& read = std::get<ValueArgument>(reader->arguments[1]).value;
  EXPECT_NE(read, scale_of(stage));
  for (Function& function : stage.functions)
    for (Step& step : function.steps)
      if (auto* segment = std::get_if<Segment>(&step))
        for (std::vector<ValueId>& dies : segment->dies) std::erase(dies, read);
  read = scale_of(stage);
  EXPECT_THAT(
      refusal(program),
      HasSubstr("backward 0: op 7 aten.mul.Tensor reads value 1, which forward has replaced"));
}

// The stage that makes the new value sends it once a step; every micro-batch sends an activation.
TEST(ChangingBuffers, AreSentOnceAStepToOtherReaders) {
  const Program program = lowered(two_stages());
  EXPECT_THAT(transfers(program.stages[0]),
              testing::UnorderedElementsAre(
                  "transfer changed/mul#0", "transfer scaled/mul#0", "transfer scaled/~mul#0"))
      << print(program);
  for (const LoweredStage& stage : program.stages) {
    EXPECT_THAT(replacing(stage), ElementsAre(FunctionKind::kUpdate));
    for (const Function& function : stage.functions)
      for (const Step& step : function.steps) {
        const auto* post = std::get_if<Post>(&step);
        const auto* wait = std::get_if<Wait>(&step);
        if (!post && !wait) continue;
        const int id = post ? post->communication : wait->communication;
        if (stage.communications[at(id)].name == "transfer changed/mul#0")
          EXPECT_EQ(function.kind, FunctionKind::kUpdate);
      }
  }
}

// The second stage makes the new value, which the first one reads only in its backward phase. The
// first one receives it in each forward call.
TEST(ChangingBuffers, TakeNewValuesThatAreReadOnTheWayBackOnly) {
  const Program program = lower(halved("%6"), two_stages(), two_devices(), {});
  EXPECT_EQ(refusal(program), "accepted");
  for (const LoweredStage& stage : program.stages)
    EXPECT_THAT(replacing(stage), ElementsAre(FunctionKind::kUpdate)) << print(program);
}

TEST(ChangingBuffers, StayInOneStageIfMicrobatchesAreBatches) {
  Plan plan = two_stages();
  plan.loss_over_microbatches = true;
  try {
    lowered(plan);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "plan: pipelines[0].stages[0]: found buffer \"scale\" read here and changed in "
                 "another stage, expected one stage that does both, since "
                 "loss_over is \"microbatches\"");
  }
}

// The verifier's error for programs with too late reads.
TEST(ChangingBuffers, ReplacedValueHasNoReader) {
  Program program = lowered(one_stage({{4, {4}}}));
  EXPECT_EQ(refusal(program), "accepted");
  std::vector<Assign> moved;
  LoweredStage& stage = program.stages[0];
  for (Function& function : stage.functions)
    if (function.kind == FunctionKind::kUpdate)
      std::erase_if(function.assigns, [&](const Assign& assign) {
        if (assign.to != scale_of(stage)) return false;
        moved.push_back(assign);
        return true;
      });
  for (Function& function : stage.functions)
    if (function.kind == FunctionKind::kForward) function.assigns = moved;
  EXPECT_THAT(refusal(program), HasSubstr("forward: replaces value 1, expected the update to"));
  program.microbatches_are_batches = true;
  EXPECT_THAT(refusal(program), HasSubstr("reads value 1, which forward has replaced"));
}

}  // namespace
}  // namespace medley
