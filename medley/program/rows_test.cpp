// The rows that lowered plans need, and their communication groups.

#include "medley/program/rows.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/program/groups.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

const std::string kDeep = "tests/data/deep.graph";  // layers.0 ... layers.3, head

Graph read(std::string text) { return run_passes(parse_graph(text, kDeep)); }

Graph deep_model() { return read(LocalFiles().read(kDeep)); }

void erase_line(std::string& text, const std::string& begin) {
  const size_t first = text.find(begin);
  text.erase(first, text.find('\n', first) + 1 - first);
}

// Returns the graph of a capture with an untrained parameter.
Graph deep_with_a_frozen_layer() {
  std::string text = LocalFiles().read(kDeep);
  for (const std::string name : {"\"layers.0.weight\"", "\"layers.0.bias\""}) {
    text.replace(text.find("parameter " + name), 9, "buffer");
    erase_line(text, "output gradient " + name);
  }
  return read(text);
}

Cluster equal_devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Returns one stage on devices 0, 1, ...
Plan plan_on(std::vector<int64_t> shape, std::vector<Microbatch> microbatches) {
  Plan plan;
  Stage stage;
  stage.mesh.axes =
      shape.size() == 1 ? std::vector<std::string>{"x"} : std::vector<std::string>{"x", "y"};
  stage.mesh.shape = shape;
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  for (int64_t i = 0; i < count; ++i) stage.mesh.devices.push_back("a/" + std::to_string(i) + "/0");
  for (const Microbatch& microbatch : microbatches) plan.global_batch += microbatch.rows;
  plan.pipelines = {{{}, std::move(microbatches), {stage}}};
  return plan;
}

// Returns stages of so many devices, cut before layers.1, layers.2, ...
Plan stages_of(std::vector<int64_t> counts, std::vector<Microbatch> microbatches) {
  Plan plan = plan_on({counts[0]}, std::move(microbatches));
  std::vector<Stage>& stages = plan.pipelines[0].stages;
  int64_t next = counts[0];
  for (size_t s = 1; s < counts.size(); ++s) {
    Stage& stage = stages.emplace_back();
    stage.first = "layers." + std::to_string(s) + "/mm#0";
    stage.mesh = {{"x"}, {counts[s]}, {}};
    for (int64_t i = 0; i < counts[s]; ++i)
      stage.mesh.devices.push_back("a/" + std::to_string(next++) + "/0");
  }
  return plan;
}

std::vector<std::vector<Rows>> all_rows(const Program& program) {
  std::vector<std::vector<Rows>> all;
  for (const LoweredStage& stage : program.stages)
    for (int i = 0; i < static_cast<int>(stage.devices.size()); ++i)
      all.push_back(rows_of(stage, i));
  return all;
}

// Each micro-batch's rows follow those of the one before.
TEST(Rows, AreTheLengthsOfTheMicrobatches) {
  const Plan plan = plan_on({2}, {{8, {7, 1}}, {3, {0, 3}}});
  EXPECT_THAT(
      all_rows(lower(deep_model(), plan, equal_devices(2), {})),
      ElementsAre(ElementsAre(Rows{0, 7}, Rows{8, 0}), ElementsAre(Rows{7, 1}, Rows{8, 3})));
}

// The first axis has the lengths; its devices of the second have the same rows.
TEST(Rows, TwoAxesUseTheRowsOfTheFirst) {
  const Plan plan = plan_on({2, 2}, {{8, {5, 3}}});
  EXPECT_THAT(all_rows(lower(deep_model(), plan, equal_devices(4), {})),
              ElementsAre(ElementsAre(Rows{0, 5}),
                          ElementsAre(Rows{0, 5}),
                          ElementsAre(Rows{5, 3}),
                          ElementsAre(Rows{5, 3})));
}

TEST(Rows, BothAxesMayDivideThem) {
  Plan plan = plan_on({2, 2}, {{8, {5, 3}}});
  plan.pipelines[0].stages[0].batch["*"] = "S(0, rows) x S(0, even)";
  EXPECT_THAT(all_rows(lower(deep_model(), plan, equal_devices(4), {})),
              ElementsAre(ElementsAre(Rows{0, 3}),
                          ElementsAre(Rows{3, 2}),
                          ElementsAre(Rows{5, 2}),
                          ElementsAre(Rows{7, 1})));
}

// Without lengths all devices compute on all rows, as does a device that reads one input whole.
TEST(Rows, ReplicatedBatchHasAllRows) {
  EXPECT_THAT(all_rows(lower(deep_model(), plan_on({2}, {{8, {}}}), equal_devices(2), {})),
              ElementsAre(ElementsAre(Rows{0, 8}), ElementsAre(Rows{0, 8})));
  Plan plan = plan_on({2}, {{8, {7, 1}}});
  plan.pipelines[0].stages[0].batch["target"] = "R";
  EXPECT_THAT(all_rows(lower(deep_model(), plan, equal_devices(2), {})),
              ElementsAre(ElementsAre(Rows{0, 8}), ElementsAre(Rows{0, 8})));
}

// The first stage reads the model's inputs, the last one the targets. Each has its own division,
// and stages between them read no batch.
TEST(Rows, StageHasTheRowsThatItReads) {
  Plan plan = stages_of({2, 1, 2}, {{8, {5, 3}}});
  plan.pipelines[0].stages[2].rows = {1, 3};
  EXPECT_THAT(all_rows(lower(deep_model(), plan, equal_devices(5), {})),
              ElementsAre(ElementsAre(Rows{0, 5}),
                          ElementsAre(Rows{5, 3}),
                          ElementsAre(Rows{0, 0}),
                          ElementsAre(Rows{0, 2}),
                          ElementsAre(Rows{2, 6})));
}

using Groups = std::vector<std::vector<int>>;

TEST(Groups, OneAxisIsOneGroup) {
  const Plan plan = plan_on({3}, {{8, {4, 3, 1}}});
  EXPECT_EQ(groups_of(lower(deep_model(), plan, equal_devices(3), {})), (Groups{{0, 1, 2}}));
}

// Rising order, whatever the order in the mesh.
TEST(Groups, AreSorted) {
  Plan plan = plan_on({3}, {{8, {4, 3, 1}}});
  plan.pipelines[0].stages[0].mesh.devices = {"a/2/0", "a/0/0", "a/1/0"};
  const Program program = lower(deep_model(), plan, equal_devices(3), {});
  EXPECT_EQ(groups_of(program), (Groups{{0, 1, 2}}));
  EXPECT_THAT(group_of(program.stages[0], program.stages[0].communications[0], 1),
              ElementsAre(2, 0, 1));
}

TEST(Groups, OneDeviceHasNoGroup) {
  EXPECT_EQ(groups_of(lower(deep_model(), plan_on({1}, {{8, {}}}), equal_devices(1), {})),
            Groups{});
}

// Rows between, tensors inside: gradients are summed along the first axis, activations along the
// second.
TEST(Groups, TwoAxesGiveTheirLines) {
  Plan plan = plan_on({2, 2}, {{8, {5, 3}}});
  plan.pipelines[0].stages[0].placements = {{"layers.1.*", "R x S(0, even)"},
                                            {"layers.2.weight", "R x S(1, even)"}};
  const Groups groups = groups_of(lower(deep_model(), plan, equal_devices(4), {}));
  for (const std::vector<int>& line : Groups{{0, 1}, {2, 3}, {0, 2}, {1, 3}})
    EXPECT_THAT(groups, ::testing::Contains(line));
}

// Stages transfer values device by device, and sum the loss over all.
TEST(Groups, StagesGiveAllDevicesAndInnerSums) {
  EXPECT_EQ(groups_of(lower(deep_model(), stages_of({2, 1}, {{8, {5, 3}}}), equal_devices(3), {})),
            (Groups{{0, 1}, {0, 1, 2}}));
}

// The norm is that of the stages with gradients.
TEST(Groups, FrozenStageIsInNoGradientGroup) {
  const Plan plan = stages_of({1, 1, 1}, {{8, {}}});
  EXPECT_EQ(groups_of(lower(deep_with_a_frozen_layer(), plan, equal_devices(3), {})),
            (Groups{{0, 1, 2}, {1, 2}}));
}

}  // namespace
}  // namespace medley
