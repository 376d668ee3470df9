#include "medley/prepare/prepare.h"

#include <gmock/gmock.h>

#include "medley/graph/text.h"

namespace medley {
namespace {

using testing::Contains;
using testing::IsSupersetOf;
using testing::Not;

// The mean of x over the counted rows: the loss reads the counts, and so does their sum.
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

TEST(Prepare, NamesOpsOfAPrologueAndALaterPhaseApart) {
  const Prepared prepared = prepare(parse_graph(kMeanOfSome, "mean.graph"), Optimizer{});
  EXPECT_THAT(prepared.names, IsSupersetOf({"prologue//relu#0", "/relu#0", "/sum#0", "/sum#1"}));
  EXPECT_THAT(prepared.names, Not(Contains("/exp#0")));  // no op reads it
  const std::set<std::string> different(prepared.names.begin(), prepared.names.end());
  EXPECT_EQ(different.size(), prepared.names.size());
}

// A module may have the name of the gradient norm or the update.
const char* const kModuleCalledNorm = R"(medley-graph 1
graph "scaled"
symbols b
%0 = batch "x" : f32[b, 4]
%1 = parameter "norm.weight" : f32[4]
%2 = aten.mul.Tensor(%0, %1) : f32[b, 4] @forward "norm"
%3 = aten.sum.default(%2, none) : f32[] @forward "update"
%4 = aten.sum.dim_IntList(%0, [0], false, none) : f32[4] @backward "norm"
output loss %3
output gradient "norm.weight" %4
)";

TEST(Prepare, RolesDoNotDependOnNames) {
  using Kind = OpRole::Kind;
  Optimizer optimizer;
  optimizer.average = 0.5;
  const Prepared prepared = prepare(parse_graph(kModuleCalledNorm, "scaled.graph"), optimizer);
  std::map<std::string, std::pair<Kind, std::string>> found;  // kind, parameter
  for (size_t i = 0; i < prepared.names.size(); ++i) {
    const std::string* parameter = parameter_of(prepared, static_cast<OpId>(i));
    found[prepared.names[i]] = {prepared.roles[i].kind, parameter ? *parameter : ""};
  }
  EXPECT_EQ(found.at("norm/mul#0"), std::pair(Kind::kModel, std::string()));
  EXPECT_EQ(found.at("update/sum#0"), std::pair(Kind::kModel, std::string()));
  EXPECT_EQ(found.at("norm/sum"), std::pair(Kind::kNormSum, std::string()));
  const std::string weight = "norm.weight";
  EXPECT_EQ(found.at("norm/" + weight), std::pair(Kind::kNorm, weight));
  EXPECT_EQ(found.at("update/" + weight), std::pair(Kind::kUpdate, weight));
  EXPECT_EQ(found.at("average/" + weight), std::pair(Kind::kAverage, weight));
}

}  // namespace
}  // namespace medley
