#include "medley/synthesis/shorten.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(Shorten, EqualBlocksBecomeOneEntry) {
  Stage stage;
  for (int i = 0; i < 12; ++i) stage.ops["h." + std::to_string(i) + ".mlp/mm#0"] = "n speed";
  stage.ops["h.3.mlp/mm#0"] = "k speed";
  stage.ops["head/mm#0"] = "n even";
  shorten(stage, {});
  EXPECT_THAT(stage.ops,
              UnorderedElementsAre(Pair("h.*.mlp/mm#0", "n speed"),
                                   Pair("h.3.mlp/mm#0", "k speed"),
                                   Pair("head/mm#0", "n even")));
}

// The number after "#" distinguishes ops of one module, not repeated blocks.
TEST(Shorten, CountsOfOpsStay) {
  Stage stage;
  stage.ops = {{"a/mm#0", "n x"}, {"a/mm#1", "k x"}};
  shorten(stage, {});
  EXPECT_EQ(stage.ops.size(), 2u);
}

// The first block of T5 has an extra op without an entry in the plan.
TEST(Shorten, AnOpWithoutAnEntryStaysWithout) {
  Stage stage;
  stage.ops = {{"block.1.attention/add#0", "d2 speed"}, {"block.2.attention/add#0", "d2 speed"}};
  const Choices before = stage.ops;
  shorten(stage, {"block.0.attention/add#0", "block.1.attention/add#0", "block.2.attention/add#0"});
  EXPECT_EQ(stage.ops, before);
  // "*" also matches "1.cross".
  stage.ops = before;
  shorten(stage,
          {"block.1.cross.attention/add#0", "block.1.attention/add#0", "block.2.attention/add#0"});
  EXPECT_EQ(stage.ops, before);
}

Plan divided(const std::string& batch, const std::string& op) {
  Plan plan;
  plan.parts = {{"speed", {}, {2, 1}}};
  Stage stage;
  if (!batch.empty()) stage.batch = {{"x", batch}};
  if (!op.empty()) stage.ops = {{"a/mm#0", op}};
  plan.pipelines = {{.microbatches = {{6, {4, 2}}}, .stages = {stage}}};
  return plan;
}

// If no op is divided by rows, lengths of micro-batches would mislead.
TEST(DropUnusedParts, UnusedPartsAreDropped) {
  Plan whole = divided("R", "replicate");
  drop_unused_parts(whole);
  EXPECT_TRUE(whole.parts.empty());
  EXPECT_TRUE(whole.pipelines[0].microbatches[0].lengths.empty());

  for (const auto& [batch, op] : std::vector<std::pair<std::string, std::string>>{
           {"S(0, rows)", "replicate"}, {"R", "m rows"}, {"", ""}}) {
    Plan rows = divided(batch, op);
    drop_unused_parts(rows);
    EXPECT_TRUE(rows.parts.empty());
    EXPECT_EQ(rows.pipelines[0].microbatches[0].lengths, (std::vector<int64_t>{4, 2})) << op;
  }
  Plan speed = divided("R", "n speed");
  drop_unused_parts(speed);
  EXPECT_EQ(speed.parts.size(), 1u);
}

}  // namespace
}  // namespace medley
