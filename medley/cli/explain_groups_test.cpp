#include "medley/cli/explain_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(ExplainGroups, OpsOfRepeatedBlocksAreOneModule) {
  EXPECT_EQ(module_pattern("h.3.mlp.up/~mm#0"), "h.*.mlp");
  EXPECT_EQ(module_pattern("h.11.mlp.down/add#1"), "h.*.mlp");
  EXPECT_EQ(module_pattern("h.3/add#0"), "h.*");
  EXPECT_EQ(module_pattern("h.*.mlp/mm#0"), "h.*.mlp");
  EXPECT_EQ(module_pattern("head.out/mm#0"), "head");
  EXPECT_EQ(module_pattern("/mean_loss#0"), "(the model)");
  EXPECT_EQ(module_pattern("accumulate/h.3.mlp.up.weight"), "(parameters)");
  // A module of that name is a module.
  EXPECT_EQ(module_pattern("norm/add#0"), "norm");
  EXPECT_EQ(block_pattern("accumulate/h.3.mlp2.weight"), "accumulate/h.*.mlp2.weight");
}

// Rows and whole ops are only counted; the head's vocabulary and the sharded parameter are named.
TEST(ExplainGroups, UnusualOpsAreNamed) {
  const Json groups = groups_json({},
                                  {{"h.0.mlp/mm#0", "m rows"},
                                   {"h.1.mlp/mm#0", "m rows"},
                                   {"h.1.mlp/sum#0", "replicate"},
                                   {"head/mm#0", "n even"},
                                   {"/mean_loss#0", "linear {0}"}},
                                  {{"head.weight", "S(0, even)"}, {"head.bias", "R"}});
  EXPECT_EQ(groups["ops"], 5);
  EXPECT_EQ(groups["replicated_ops"], 1);
  ASSERT_EQ(groups["modules"].size(), 3U);
  EXPECT_EQ(groups["modules"][0]["module"], "h.*.mlp");
  EXPECT_EQ(groups["modules"][0]["by"], (Json{{"replicated", 1}, {"rows", 2}}));
  EXPECT_EQ(groups["modules"][1]["by"], (Json{{"even", 1}}));
  EXPECT_EQ(groups["modules"][2]["by"], (Json{{"partial", 1}}));
  const Json head = {
      {"op", "head/mm#0"}, {"count", 1}, {"plan_text", "n even"}, {"meaning", "n sharded evenly"}};
  EXPECT_EQ(groups["not_by_rows"], Json::array({head}));
  const Json weight = {{"parameter", "head.weight"},
                       {"count", 1},
                       {"plan_text", "S(0, even)"},
                       {"meaning", "dim 0 sharded evenly"}};
  EXPECT_EQ(groups["sharded"], Json::array({weight}));
  EXPECT_THAT(groups_text(groups), HasSubstr("1 of 2 parameters are sharded"));
  // Without a graph: the plan's entries, without counts.
  EXPECT_EQ(said_text(groups),
            "op         in plan.json  meaning\n"
            "head/mm#0  n even        n sharded evenly\n\n"
            "parameter    in plan.json  meaning\n"
            "head.weight  S(0, even)    dim 0 sharded evenly\n");
}

// One page for any number of modules and exceptions. No op is lost from the count.
TEST(ExplainGroups, StaysOnAPage) {
  std::vector<Said> ops, stored;
  for (int i = 0; i < 100; ++i) {
    const std::string module = "module_" + std::to_string(i) + "x";
    ops.push_back({module + "/mm#0", "n even"});
    stored.push_back({module + ".weight", "S(1, even)"});
  }
  const std::string text = groups_text(groups_json({}, ops, stored));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 30);
  EXPECT_THAT(text,
              AllOf(HasSubstr("... and 94 more"), HasSubstr("(others)"), HasSubstr("  93\n")));
  EXPECT_THAT(text, Not(HasSubstr("All 100 parameters")));
}

}  // namespace
}  // namespace medley
