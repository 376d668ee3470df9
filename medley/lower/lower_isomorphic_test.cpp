// Programs of one plan for sequences of several lengths.

#include "medley/lower/lower_isomorphic.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/text.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns relu(x w) of sequences of `length` tokens of 4 numbers, with its sum as loss. The
// gradient is deliberately of another function.
Graph of_length(int64_t length, const std::string& op = "relu") {
  const std::string text = fmt::format(R"(medley-graph 1
graph "g"
symbols b
%0 = parameter "w" : f32[4, 6]
%1 = batch "x" : f32[b, {0}, 4]
%2 = aten.view.default(%1, [b*{0}, 4]) : f32[b*{0}, 4] @forward "first"
%3 = aten.mm.default(%2, %0) : f32[b*{0}, 6] @forward "first"
%4 = aten.{1}.default(%3) : f32[b*{0}, 6] @forward "second"
%5 = aten.sum.default(%4, none) : f32[] @forward "second"
%6 = aten.full.default(sizes[], 1.0, f32, none, none, none) : f32[] @backward "second"
%7 = aten.expand.default(%6, [b*{0}, 6], false) : f32[b*{0}, 6] @backward "second"
%8 = aten.t.default(%2) : f32[4, b*{0}] @backward "first"
%9 = aten.mm.default(%8, %7) : f32[4, 6] @backward "first"
output loss %5
output gradient "w" %9
)",
                                       length,
                                       op);
  return parse_graph(text, "g.graph");
}

Plan plan_of(const std::vector<std::vector<std::string>>& stages) {
  Plan plan;
  plan.global_batch = 6;
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches = {{4, {}}, {2, {}}};
  for (const std::vector<std::string>& devices : stages) {
    Stage stage;
    stage.mesh = {{"x"}, {static_cast<int64_t>(devices.size())}, devices};
    if (!plan.pipelines[0].stages.empty()) stage.first = "second/relu#0";
    plan.pipelines[0].stages.push_back(std::move(stage));
  }
  return plan;
}

Cluster devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "no error";
}

// Lowered directly a graph gives the same program, since it depends on no length.
TEST(LowerIsomorphic, IsTheProgramOfAPlanOfThatLength) {
  const Plan plan = plan_of({{"a/0/0", "a/1/0"}});
  const Program planned = lower(of_length(12), plan, devices(2), {});
  const Program found = lower_isomorphic(of_length(12), of_length(5), plan, devices(2), {});
  EXPECT_EQ(print(found), print(lower(of_length(5), plan, devices(2), {})));
  EXPECT_NO_THROW(require_isomorphic(planned, found));
}

TEST(LowerIsomorphic, SeveralStagesAreIsomorphic) {
  const Plan plan = plan_of({{"a/0/0"}, {"a/1/0", "a/2/0"}});
  const Program planned = lower(of_length(12), plan, devices(3), {});
  const Program found = lower_isomorphic(of_length(12), of_length(7), plan, devices(3), {});
  EXPECT_NO_THROW(require_isomorphic(planned, found));
  EXPECT_EQ(found.stages.size(), 2u);
}

TEST(LowerIsomorphic, AnotherOpIsNamed) {
  const Plan plan = plan_of({{"a/0/0"}});
  EXPECT_THAT(refusal([&] {
                (void)lower_isomorphic(
                    of_length(12), of_length(5, "sigmoid"), plan, devices(1), {});
              }),
              AllOf(HasSubstr("graph: op 2 aten.relu.default in \"second\""),
                    HasSubstr("expected the same but for sizes")));
}

// Two programs with different sizes of a value of the run's lifetime.
TEST(LowerIsomorphic, OtherStateSizeIsNamed) {
  const Plan plan = plan_of({{"a/0/0"}});
  Program planned = lower(of_length(12), plan, devices(1), {});
  Program other = planned;
  LoweredStage& stage = other.stages[0];
  for (const PlacedValue& placed : stage.inputs)
    if (placed.input.name == "w")
      stage.graph.values[at(placed.input.value)].type.shape[0] = Size(3);
  EXPECT_THAT(refusal([&] { require_isomorphic(planned, other); }), HasSubstr("parameter \"w\""));
}

}  // namespace
}  // namespace medley
