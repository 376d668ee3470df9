#include "medley/executor/peephole.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/graph/text.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

// Returns all ops of a graph, with the last use of each value as in Segment.
std::vector<SegmentOp> fuse_all(const Graph& graph) {
  Segment segment;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    segment.ops.push_back(static_cast<OpId>(i));
    segment.dies.emplace_back();
    for (ValueId value : operands(graph.ops[i])) {
      bool later = false;
      for (size_t k = i + 1; k < graph.ops.size(); ++k)
        for (ValueId other : operands(graph.ops[k])) later = later || other == value;
      if (!later) segment.dies.back().push_back(value);
    }
  }
  return fuse(graph, segment, {4});
}

std::vector<std::string> names(const std::vector<SegmentOp>& ops) {
  std::vector<std::string> result;
  for (const SegmentOp& each : ops) result.push_back(each.op.name);
  return result;
}

// Returns a matmul, a bias added to it, and further ops.
Graph linear(const std::string& behind) {
  return parse_graph(R"(medley-graph 1
graph "linear"
symbols b
%0 = batch "x" : f32[b, 8]
%1 = parameter "w" : f32[8, 4]
%2 = parameter "bias" : f32[4]
%3 = aten.mm.default(%0, %1) : f32[b, 4] @forward ""
%4 = aten.add.Tensor(%3, %2, 1) : f32[b, 4] @forward ""
)" + behind,
                     "linear");
}

TEST(Peephole, ABiasIsAddedByTheProduct) {
  const Graph graph = linear(R"(%5 = aten.sum.default(%4, none) : f32[] @forward ""
output loss %5
)");
  EXPECT_THAT(names(fuse_all(graph)), ElementsAre("aten.addmm.default", "aten.sum.default"));
}

TEST(Peephole, MatmulWithAnotherReaderStays) {
  const Graph graph = linear(R"(%5 = aten.mul.Tensor(%4, %3) : f32[b, 4] @forward ""
%6 = aten.sum.default(%5, none) : f32[] @forward ""
output loss %6
)");
  EXPECT_EQ(names(fuse_all(graph)).front(), "aten.mm.default");
}

}  // namespace
}  // namespace medley
