#include "medley/ops/known_instances.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/ops/instance.h"

namespace medley {
namespace {

Graph read_graph(const std::string& file) { return parse_graph(LocalFiles().read(file), file); }

// Compares the op alone with the cached one; "none" if no rule fits.
void expect_as_alone(const Graph& graph) {
  KnownInstances known(graph);
  for (const Op& op : graph.ops) {
    const std::optional<Instance> alone = instantiate(graph, op);
    const std::shared_ptr<const Instance> shared = known.of(op);
    EXPECT_EQ(shared ? to_string(*shared, graph.symbols) : "none",
              alone ? to_string(*alone, graph.symbols) : "none")
        << op.name;
  }
}

TEST(KnownInstances, AreThoseOfEachOpAlone) {
  for (const char* name : {"mlp", "deep", "gpt"})
    expect_as_alone(read_graph("tests/data/" + std::string(name) + ".graph"));
}

TEST(KnownInstances, EqualOpsShareOneInstance) {
  const Graph graph = read_graph("tests/data/gpt.graph");
  KnownInstances known(graph);
  const auto is_mm = [](const Op& op) { return op.name == "aten.mm.default"; };
  const auto first = std::ranges::find_if(graph.ops, is_mm);
  ASSERT_NE(first, graph.ops.end());
  EXPECT_EQ(known.of(*first).get(), known.of(Op(*first)).get());
}

// An argument, a type or an operand's producer distinguishes them, not only the results.
TEST(KnownInstances, OpsThatDifferDoNot) {
  const Graph graph = parse_graph(R"(medley-graph 1
graph "g"
symbols b
%0 = batch "i" : i64[b, 5]
%1 = batch "s" : f32[b, 5]
%2 = batch "x" : f32[b, 6]
%3 = batch "y" : f32[b, 9]
%4 = aten.zeros.default([b, 9], f32, none, none, none) : f32[b, 9] @forward ""
%5 = aten.ones.default([b, 9], f32, none, none, none) : f32[b, 9] @forward ""
%6 = aten.scatter_add.default(%4, 1, %0, %1) : f32[b, 9] @forward ""
%7 = aten.scatter_add.default(%5, 1, %0, %1) : f32[b, 9] @forward ""
%8 = aten.sum.dim_IntList(%2, [1], true, none) : f32[b, 1] @forward ""
%9 = aten.sum.dim_IntList(%3, [1], true, none) : f32[b, 1] @forward ""
%10 = aten.cumsum.default(%3, 1, none) : f32[b, 9] @forward ""
%11 = aten.cumsum.default(%3, 0, none) : f32[b, 9] @forward ""
)",
                                  "test");
  expect_as_alone(graph);
  KnownInstances known(graph);
  for (const size_t first : {2, 4, 6})
    EXPECT_NE(to_string(*known.of(graph.ops[first]), graph.symbols),
              to_string(*known.of(graph.ops[first + 1]), graph.symbols));
}

}  // namespace
}  // namespace medley
