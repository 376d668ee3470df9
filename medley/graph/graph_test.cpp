#include "medley/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/error.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

Op op_in(std::string module, std::string name, Phase phase = Phase::kForward) {
  Op op;
  op.name = std::move(name);
  op.module = std::move(module);
  op.phase = phase;
  return op;
}

TEST(Graph, AddOpLinksItsResults) {
  Graph graph;
  const ValueId x = add_input(graph, InputKind::kBatch, "x", {});
  Op op = op_in("", "aten.sort.default");
  op.arguments = {ValueArgument{x}};
  const TensorType indices{DType::kI64, {}};
  EXPECT_THAT(add_op(graph, op, {TensorType{}, indices}), ElementsAre(1, 2));
  EXPECT_EQ(graph.values[2], (Value{indices, 0, 1}));
}

// A None result takes no type and no id.
TEST(Graph, AddOpKeepsAbsentResults) {
  Graph graph;
  Op op = op_in("", "aten.convolution_backward.default");
  op.results = {kNone, 0, kNone};
  EXPECT_THAT(add_op(graph, op, {TensorType{}}), ElementsAre(0));
  EXPECT_THAT(graph.ops[0].results, ElementsAre(kNone, 0, kNone));
  EXPECT_THROW(add_op(graph, op, {}), Error);
}

TEST(Graph, OperandsFlattenLists) {
  Op op;
  op.arguments = {ValueArgument{3},
                  Size(1),
                  std::vector<ValueArgument>{{4}, {kNone}, {3}},
                  NoneArgument{},
                  std::string("5")};
  EXPECT_THAT(operands(op), ElementsAre(3, 4, kNone, 3));
  for_each_operand(op, [](ValueId& value) { value += 10; });
  EXPECT_THAT(operands(op), ElementsAre(13, 14, kNone, 13));
}

TEST(Graph, StableNamesCountWithinModuleAndPhase) {
  Graph graph;
  graph.ops = {op_in("h.0", "aten.mm.default"),
               op_in("h.0", "aten.mm.default"),
               op_in("h.0", "aten.add.Tensor"),
               op_in("", "medley.mean_loss.default"),
               op_in("h.0", "aten.mm.default", Phase::kBackward)};
  EXPECT_THAT(stable_names(graph),
              ElementsAre("h.0/mm#0", "h.0/mm#1", "h.0/add#0", "/mean_loss#0", "h.0/~mm#0"));
}

// Names are unique, so a prologue op shares the count of its forward namesakes.
TEST(Graph, StableNamesAreUniqueAcrossPhasesWithoutAMark) {
  Graph graph;
  graph.ops = {op_in("", "aten.sum.default", Phase::kPrologue), op_in("", "aten.sum.default")};
  EXPECT_THAT(stable_names(graph), ElementsAre("/sum#0", "/sum#1"));
}

TEST(Graph, StatesSayOfWhichParameterTheyAre) {
  using Kind = StateRole::Kind;
  Graph graph;
  for (const char* name : {"exp_avg:a:b", "master:w", "average:w", "loss_scale", "momentum"})
    add_input(graph, InputKind::kState, name, {});
  add_input(graph, InputKind::kParameter, "master:w", {});
  std::vector<StateRole> roles;
  for (const Input& input : graph.inputs) roles.push_back(input.role);
  EXPECT_THAT(roles,
              ElementsAre(StateRole{Kind::kMoment, "a:b"},
                          StateRole{Kind::kMaster, "w"},
                          StateRole{Kind::kAverage, "w"},
                          StateRole{Kind::kLossScale, ""},
                          StateRole{Kind::kMoment, "momentum"},
                          StateRole{}));
}

TEST(Graph, NumBytes) {
  EXPECT_EQ(num_bytes({DType::kBF16, {Size::of(0), 3}}, {5}), 30);
  EXPECT_EQ(num_bytes({DType::kF64, {}}, {}), 8);
}

}  // namespace
}  // namespace medley
