#include "medley/prepare/prepare.h"

#include <gmock/gmock.h>

#include "medley/graph/text.h"

namespace medley {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;

// The mean of x over the rows that count: the loss reads the counts, and so does their sum.
const char* const kMeanOfSome = R"(medley-graph 1
graph "mean"
symbols b
%0 = batch "x" : f32[b]
%1 = batch "k" : f32[b]
%2 = aten.relu.default(%1) : f32[b] @forward ""
%3 = aten.sum.default(%2, none) : f32[] @forward ""
%4 = aten.exp.default(%3) : f32[] @forward ""
%5 = aten.mul.Tensor(%0, %2) : f32[b] @forward ""
%6 = aten.sum.default(%5, none) : f32[] @forward ""
%7 = medley.step_sum.default(%3) : f32[] @forward ""
%8 = aten.div.Tensor(%6, %7) : f32[] @forward ""
output loss %8
)";

TEST(Prepare, NamesWhatAPrologueAndAPhaseBehindItBothDoApart) {
  const Prepared prepared = prepare(parse_graph(kMeanOfSome, "mean.graph"), Optimizer{});
  EXPECT_THAT(prepared.names, IsSupersetOf({"prologue//relu#0", "/relu#0", "/sum#0", "/sum#1"}));
  EXPECT_THAT(prepared.names, Not(Contains("/exp#0")));  // no op reads it
  const std::set<std::string> different(prepared.names.begin(), prepared.names.end());
  EXPECT_EQ(different.size(), prepared.names.size());
}

}  // namespace
}  // namespace medley
