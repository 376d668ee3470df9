#include "medley/plan/compute_types.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/graph/text.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Graph graph_of(const std::string& weight, const std::string& scale) {
  return parse_graph(
      "medley-graph 1\ngraph \"g\"\nsymbols b\n"
      "%0 = parameter \"w\" : " +
          weight +
          "[4]\n"
          "%1 = batch \"x\" : f32[b, 4]\n"
          "%2 = aten._to_copy.default(%1, bf16, none, none, none, false, none) "
          ": bf16[b, 4] @forward \"\"\n"
          "%3 = aten.sum.default(%1, none) : f32[] @forward \"\"\n"
          "%4 = aten.full.default(sizes[], 1.0, f32, none, none, none) : f32[] "
          "@backward \"\"\n"
          "%5 = " +
          scale +
          "(%4) : f32[] @backward \"\"\n"
          "%6 = aten.expand.default(%5, [4], false) : " +
          weight +
          "[4] @backward \"\"\n"
          "output loss %3\noutput gradient \"w\" %6\n",
      "g.graph");
}
Graph learning() { return graph_of("f32", std::string(kLossScale)); }

Cluster unlike() {
  Cluster cluster;
  for (const auto& [name, dtype] : {std::pair("new", DType::kBF16),
                                    std::pair("volta", DType::kF16),
                                    std::pair("pascal", DType::kF32)}) {
    NodePool pool;
    pool.name = pool.kind.name = name;
    pool.kind.bf16_as = dtype;
    cluster.pools.push_back(pool);
  }
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

Plan on(const std::vector<std::string>& devices) {
  Plan plan;
  plan.global_batch = 4;
  plan.pipelines.resize(1);
  plan.pipelines[0].microbatches = {{4, {}}};
  plan.pipelines[0].stages.resize(1);
  plan.pipelines[0].stages[0].mesh = {{"data"}, {static_cast<int64_t>(devices.size())}, devices};
  return plan;
}

std::string refusal(const Plan& plan, const Graph& graph) {
  try {
    verify(plan, graph, unlike());
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    return error.what();
  }
  return "accepted";
}

TEST(ComputeTypes, AreWrittenDownForTheKindsInUse) {
  Plan plan = on({"new/0/0", "pascal/0/0"});
  note_types(plan, learning(), unlike());
  EXPECT_THAT(plan.bf16_as, ElementsAre(Pair("pascal", DType::kF32)));
  EXPECT_EQ(parse_plan(print(plan), "p.json"), plan);
  EXPECT_FALSE(computes_in_f16(plan, learning(), unlike()));
  EXPECT_TRUE(computes_in_f16(on({"volta/0/0"}), learning(), unlike()));
  EXPECT_EQ(refusal(plan, learning()), "accepted");
}

TEST(ComputeTypes, Bf16IsNeverEmulated) {
  Plan plan = on({"volta/0/0"});
  plan.bf16_as["volta"] = DType::kBF16;
  EXPECT_EQ(refusal(plan, learning()),
            "bf16_as[\"volta\"]: found bf16, which it does not have, expected f16 or f32");
  plan.bf16_as["volta"] = DType::kF32;
  EXPECT_EQ(refusal(plan, learning()), "accepted");
  plan.bf16_as["ampere"] = DType::kF32;
  EXPECT_EQ(refusal(plan, learning()),
            "bf16_as[\"ampere\"]: found no device of that kind, expected a device type of the "
            "cluster");
}

TEST(ComputeTypes, OtherTypesAreNoneThatStandForBf16) {
  Plan plan = on({"volta/0/0"});
  plan.bf16_as["volta"] = DType::kI32;
  EXPECT_THAT([&] { parse_plan(print(plan), "p.json"); },
              ::testing::ThrowsMessage<Error>(
                  HasSubstr(R"(["bf16_as"].volta: found "i32", expected "bf16", "f16" or)")));
}

}  // namespace
}  // namespace medley
