#include "medley/ops/overwrite.h"

#include <gmock/gmock.h>

#include "medley/graph/text.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

std::array<ValueId, 2> of(const std::string& op) {
  const Graph graph = parse_graph(R"(medley-graph 1
graph "ops"
symbols b
%0 = batch "x" : f32[b, 8]
%1 = batch "y" : f32[b, 8]
%2 = batch "z" : f32[8]
%3 = )" + op + R"( : f32[b, 8] @forward ""
output loss %3
)",
                                  "ops");
  return overwritable(graph, graph.ops.at(0));
}

TEST(Overwrite, TheFirstOperandOfTheSameTypeOrTheSecondWhereTheyCommute) {
  EXPECT_THAT(of("aten.add.Tensor(%0, %1, 1)"), ElementsAre(0, 1));
  EXPECT_THAT(of("aten.mul.Tensor(%2, %1)"), ElementsAre(1, kNone));
  EXPECT_THAT(of("aten.sub.Tensor(%0, %1, 1)"), ElementsAre(0, kNone));
  EXPECT_THAT(of("aten.sub.Tensor(%2, %1, 1)"), ElementsAre(kNone, kNone));
}

TEST(Overwrite, NotAScaledOneNorOneThatIsReadTwice) {
  EXPECT_THAT(of("aten.add.Tensor(%0, %1, 2)"), ElementsAre(0, kNone));
  EXPECT_THAT(of("aten.mul.Tensor(%0, %0)"), ElementsAre(kNone, kNone));
  EXPECT_THAT(of("aten.gelu.default(%0, \"none\")"), ElementsAre(kNone, kNone));
}

}  // namespace
}  // namespace medley
