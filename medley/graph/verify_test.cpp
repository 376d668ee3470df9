#include "medley/graph/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/error.h"
#include "medley/graph/text.h"

namespace medley {
namespace {

constexpr char kText[] = R"(medley-graph 1
graph "g"
symbols b s
%0 = parameter "w" : f32[4]
%1 = batch "x" : f32[b, 4]
%2 = aten.mul.Tensor(%1, %0) : f32[b, 4] @forward "m" at "m.py:1"
%3 = aten.sum.default(%2, none) : f32[] @forward ""
output loss %3
output gradient "w" %0
)";

// Returns the fault that verify() finds in the graph above after `change`.
template <typename Change>
std::string fault(Change change) {
  Graph graph = parse_graph(kText, "g");
  change(graph);
  try {
    verify(graph);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kUs);
    return error.what();
  }
  return "none";
}

const std::string kMul = "graph \"g\": op 0 aten.mul.Tensor in \"m\" at m.py:1: ";

TEST(Verify, AcceptsTheGraph) {
  EXPECT_EQ(fault([](Graph&) {}), "none");
}

TEST(Verify, Values) {
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[0] = ValueArgument{9}; }),
            kMul + "operand out of range: 9");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[0] = ValueArgument{-2}; }),
            kMul + "operand out of range: -2");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[0] = ValueArgument{3}; }),
            kMul + "operand must be defined before its use: %3");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[0] = ValueArgument{}; }),
            kMul + "an absent operand outside a list must be none");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].results[0] = 1; }),
            kMul + "value must be defined once: %1");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].results[0] = 7; }), kMul + "value out of range: 7");
  EXPECT_EQ(fault([](Graph& g) { g.values[2].producer = 1; }),
            kMul + "%2 must be linked to result 0 of op 0, not to 0 of 1");
  EXPECT_EQ(fault([](Graph& g) { g.values.emplace_back(); }),
            "graph \"g\": value %4: must be defined");
}

TEST(Verify, Names) {
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].name = "mul"; }),
            "graph \"g\": op 0 mul in \"m\" at m.py:1: the name must be namespace.op.overload");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].results.clear(); }), kMul + "must have a result");
  EXPECT_EQ(fault([](Graph& g) { g.symbols[0] = "f32"; }),
            "graph \"g\": symbols: not a name: \"f32\"");
  EXPECT_EQ(fault([](Graph& g) { g.symbols[0] = "s"; }), "graph \"g\": symbols: twice: s");
  EXPECT_EQ(fault([](Graph& g) { add_input(g, InputKind::kBatch, "x", {}); }),
            "graph \"g\": batch \"x\": the name must be unique within the kind");
  EXPECT_EQ(fault([](Graph& g) { add_input(g, InputKind::kBuffer, "x", {}); }), "none");
}

TEST(Verify, Sizes) {
  EXPECT_EQ(fault([](Graph& g) { g.values[2].type.shape[0] = Size::of(2); }),
            kMul + "%2: symbol out of range: 2");
  EXPECT_EQ(fault([](Graph& g) {
              g.values[2].type.shape[0].symbols = {1, 0};
            }),
            kMul + "%2: symbols must be sorted: s*b");
  EXPECT_EQ(fault([](Graph& g) { g.values[2].type.shape[0].coefficient = -3; }),
            kMul + "%2: a size must not be negative: b*-3");
  EXPECT_EQ(fault([](Graph& g) { g.values[2].type.shape[0].coefficient = 0; }),
            kMul + "%2: a size of zero must have no symbols");
  EXPECT_EQ(fault([](Graph& g) { g.values[2].type.shape.assign(65, 1); }),
            kMul + "%2 must have at most 64 dims");
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[1] = std::vector<Size>{Size::of(-1)}; }),
            kMul + "symbol out of range: -1");
  // An argument may be negative: the dim -1, the -1 of a padding index.
  EXPECT_EQ(fault([](Graph& g) { g.ops[0].arguments[1] = Size(-1); }), "none");
}

TEST(Verify, Outputs) {
  EXPECT_EQ(fault([](Graph& g) { g.outputs.erase(g.outputs.begin()); }),
            "graph \"g\": outputs: must have a loss");
  EXPECT_EQ(fault([](Graph& g) { g.outputs.push_back(g.outputs[0]); }),
            "graph \"g\": output loss \"\": must be there once");
  EXPECT_EQ(fault([](Graph& g) { g.outputs[0].value = 2; }),
            "graph \"g\": output loss \"\": must be a floating scalar");
  EXPECT_EQ(fault([](Graph& g) { g.outputs[0].value = 4; }),
            "graph \"g\": output loss \"\": out of range: 4");
  EXPECT_EQ(fault([](Graph& g) { g.outputs[0].name = "l"; }),
            "graph \"g\": output loss \"l\": a loss has no name");
  EXPECT_EQ(fault([](Graph& g) { g.outputs[1].name = "v"; }),
            "graph \"g\": output gradient \"v\": there is no such parameter");
  EXPECT_EQ(fault([](Graph& g) { g.outputs[1].value = 1; }),
            "graph \"g\": output gradient \"w\": must have the type of the parameter");
}

TEST(Verify, Metrics) {
  const Output metric{OutputKind::kMetric, "accuracy", 3};
  EXPECT_EQ(fault([&](Graph& g) { g.outputs.push_back(metric); }), "none");
  EXPECT_EQ(fault([&](Graph& g) { g.outputs.insert(g.outputs.end(), 2, metric); }),
            "graph \"g\": output metric \"accuracy\": must be there once");
  EXPECT_EQ(fault([](Graph& g) {
              g.outputs.push_back({OutputKind::kMetric, "", 3});
            }),
            "graph \"g\": output metric \"\": must have a name");
  EXPECT_EQ(fault([](Graph& g) { g.outputs.push_back({OutputKind::kMetric, "rows", 2}); }), "none");
  EXPECT_EQ(
      fault([](Graph& g) {
        g.values[2].type.shape[1] = Size::of(0);
        g.outputs.push_back({OutputKind::kMetric, "pairs", 2});
      }),
      "graph \"g\": output metric \"pairs\": must have the rows of the batch in one dim at most");
}

TEST(Verify, CarriedValueHasTheTypeOfItsInput) {
  EXPECT_EQ(fault([](Graph& g) {
              g.outputs.push_back({OutputKind::kMetric, "carried:x", 2});
            }),
            "none");
  EXPECT_EQ(fault([](Graph& g) {
              g.outputs.push_back({OutputKind::kMetric, "carried:x", 3});
            }),
            "graph \"g\": output metric \"carried:x\": must have the type of the batch input");
}

// In the graph of a stage before others the last values are sent; the loss is in a later stage.
TEST(Verify, AStageMaySendInPlaceOfALoss) {
  EXPECT_EQ(fault([](Graph& g) { g.outputs[0] = {OutputKind::kSent, "m/mul#0", 2}; }), "none");
  EXPECT_EQ(fault([](Graph& g) {
              g.outputs[0] = {OutputKind::kSent, "", 2};
            }),
            "graph \"g\": output sent \"\": must have a name");
}

}  // namespace
}  // namespace medley
