// Owners over pipelines in lowered programs.

#include "medley/lower/owned_shares.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/boxes/cells.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/plan/owners.h"
#include "medley/program/calls.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

using testing::ElementsAre;

Graph read_text(const std::string& path) {
  return run_passes(parse_graph(LocalFiles().read(path), path));
}

Cluster owners_of(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

// Returns the layout of a stage's devices, from their tables.
Layout layout_in_tables(const LoweredStage& stage, const PlacedValue& placed) {
  Layout layout;
  for (const std::vector<Size>& dim : placed.factors)
    for (const Size& factor : dim) layout.factors.push_back(evaluate(factor, {}));
  for (const std::vector<int64_t>& table : stage.tables[0]) {
    Box box = whole_box(layout.factors);
    for (const PlacedValue::Cut& cut : placed.cuts) {
      const int64_t begin = evaluate(cut.offset, table);
      box[at(cut.position)] = {begin, begin + evaluate(cut.length, table)};
    }
    const auto known = std::ranges::find(layout.boxes, box);
    layout.box_of.push_back(volume(box) == 0 ? kNoBox
                                             : static_cast<int>(known - layout.boxes.begin()));
    if (volume(box) > 0 && known == layout.boxes.end()) layout.boxes.push_back(box);
  }
  return layout;
}

// Returns the layouts by name, in each stage with a part of it.
std::map<std::string, std::vector<Layout>> states_of(const Program& program) {
  std::map<std::string, std::vector<Layout>> states;
  for (const LoweredStage& stage : program.stages)
    for (const PlacedValue& placed : stage.inputs)
      if (placed.input.kind == InputKind::kState)
        states[placed.input.name].push_back(layout_in_tables(stage, placed));
  return states;
}

// Every stage with an undivided parameter has the whole of it. In a divided one, each element is in
// one stage.
TEST(OwnedShares, EveryElementIsUpdatedInOnePlace) {
  const Cluster cluster = owners_of(6);
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  int divided = 0, undivided = 0, cut = 0;
  for (const char* path : {"tests/data/mlp.graph", "python/tests/golden/gpt.graph"}) {
    const Graph graph = read_text(path);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const Plan plan = random_pipelines(graph, names, 12, seed);
      const Program program = lower(graph, plan, cluster, {});
      const Owners owners(plan);
      for (const auto& [name, layouts] : states_of(program)) {
        SCOPED_TRACE(fmt::format("{} {} {}", path, seed, name));
        const bool is_divided = owners.division(name.substr(name.find(':') + 1)).has_value();
        (is_divided ? divided : undivided) += 1;
        cut += is_divided && layouts.size() > 1 ? 1 : 0;
        const auto owned = is_divided ? 1 : static_cast<std::ptrdiff_t>(layouts.size());
        for (const Cell& cell : cells_of(layouts).cells)
          ASSERT_EQ(std::ranges::count_if(cell.boxes, [](int box) { return box != kNoBox; }),
                    owned);
      }
    }
  }
  EXPECT_GT(divided, 100);
  EXPECT_GT(undivided, 100);
  EXPECT_GT(cut, 100);
}

// Two pipelines of the two layers: two devices that divide the first layer's weight, and one.
class TwoPipelines : public testing::Test {
 protected:
  TwoPipelines() {
    plan.global_batch = 12;
    plan.pipelines.resize(2);
    plan.pipelines[0].microbatches = {{8, {}}};
    plan.pipelines[0].stages = {{.mesh = {{"x"}, {2}, {"a/0/0", "a/1/0"}}}};
    plan.pipelines[0].stages[0].placements = {{"fc1.weight", "S(0, even)"}};
    plan.pipelines[1].microbatches = {{4, {}}};
    plan.pipelines[1].stages = {{.mesh = {{"x"}, {1}, {"a/2/0"}}}};
  }

  // Returns the state's boxes, pipeline after pipeline, device after device; "-": empty.
  std::vector<std::string> boxes(const std::string& state) const {
    std::vector<std::string> texts;
    const Program program = lower(graph, plan, cluster, {});
    verify(plan, graph, cluster);
    for (const LoweredStage& stage : program.stages)
      for (const PlacedValue& placed : stage.inputs)
        if (placed.input.name == state) {
          const Layout layout = layout_in_tables(stage, placed);
          for (int box : layout.box_of)
            texts.push_back(box == kNoBox ? "-" : to_string(layout.boxes[at(box)]));
        }
    return texts;
  }

  Graph graph = read_text("tests/data/mlp.graph");
  Cluster cluster = owners_of(3);
  Plan plan;
};

TEST_F(TwoPipelines, AFactorIsCutThatNoMeshCuts) {
  plan.parts = {{"owners", {}, {3, 1}}};
  plan.owners = {{"fc1.weight", "owners"}};
  EXPECT_THAT(boxes("exp_avg:fc1.weight"),
              ElementsAre("[0, 16) x [0, 12)", "[16, 32) x [0, 12)", "[0, 32) x [12, 16)"));
  EXPECT_THAT(boxes("exp_avg:fc2.weight"),
              ElementsAre("[0, 4) x [0, 32)", "[0, 4) x [0, 32)", "[0, 4) x [0, 32)"));
}

// Without another factor, each device has the intersection of its shard and the share.
TEST_F(TwoPipelines, AShareOfACutFactorIsWhatShardsHaveOfIt) {
  plan.pipelines[0].stages[0].placements["fc1.bias"] = "S(0, even)";
  plan.parts = {{"owners", {24, 8}, {}}};
  plan.owners = {{"*", "owners"}};
  EXPECT_THAT(boxes("exp_avg:fc1.bias"), ElementsAre("[0, 16)", "[16, 24)", "[24, 32)"));
  plan.parts[0].lengths = {8, 24};
  EXPECT_THAT(boxes("exp_avg:fc1.bias"), ElementsAre("[0, 8)", "-", "[8, 32)"));
}

TEST_F(TwoPipelines, StageWithoutOwnedShareHasNoState) {
  plan.parts = {{"owners", {}, {0, 1}}};
  plan.owners = {{"*", "owners"}};
  EXPECT_THAT(boxes("exp_avg:fc1.weight"), ElementsAre("[0, 32) x [0, 16)"));
}

TEST_F(TwoPipelines, LengthsThatDivideNothingAreRefused) {
  plan.parts = {{"owners", {24, 8}, {}}};
  plan.owners = {{"fc*", "owners"}};
  plan.parts[0].lengths = {4, 3};
  try {
    lower(graph, plan, cluster, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_THAT(error.what(),
                testing::StartsWith("plan: owners[\"fc*\"]: found \"owners\", "
                                    "expected a part that divides one of the factors "));
  }
}

// A pipeline that owns three quarters of the states stores just these.
TEST_F(TwoPipelines, OwnersHaveTheMemoryOfWhatTheyOwn) {
  const auto persistent = [&](size_t stage) {
    const Program program = lower(graph, plan, cluster, {});
    int64_t bytes = 0;
    for (const Input& input : program.stages[stage].graph.inputs)
      if (input.kind == InputKind::kState)
        bytes += num_bytes(type_of(program.stages[stage].graph, input.value),
                           program.stages[stage].tables[0].back());
    return bytes;
  };
  const int64_t all = persistent(1);
  plan.parts = {{"owners", {}, {3, 1}}};
  plan.owners = {{"*", "owners"}};
  EXPECT_EQ(persistent(1), all / 4);
}

// Returns an optimizer that updates whole tensors, or rows.
Optimizer optimizer_of(const std::string& kind) {
  const std::map<std::string, std::vector<double>> numbers{
      {"adafactor", {0.1, -0.8, 1e-12, 1e-3, 1}},
      {"adamw8", {0.9, 0.999, 1e-8, 0.01}},
      {"muon", {0.95, 0.1, 3.4445, -4.775, 2.0315, 1e-7, 5, 1, 0}}};
  Optimizer optimizer;
  optimizer.rules = {{kind, numbers.at(kind)}};
  return optimizer;
}

// The pipeline with the largest share updates all of it on each of its devices, each of which gives
// its shard.
TEST_F(TwoPipelines, WholeUpdateHasOneOwner) {
  plan.parts = {{"owners", {}, {3, 1}}};
  plan.owners = {{"fc1.weight", "owners"}};
  const Program program = lower(graph, plan, cluster, optimizer_of("adafactor"));
  verify(program);
  const std::vector<Layout> held = states_of(program).at("row_var:fc1.weight");
  ASSERT_EQ(held.size(), 1u);
  EXPECT_THAT(held[0].boxes, ElementsAre(Box{{0, 32}}));
  EXPECT_THAT(held[0].box_of, ElementsAre(0, 0));
  const LoweredStage& stage = program.stages[0];
  const auto sync = std::ranges::find(
      stage.communications, "sync new values from fc1.weight", &Communication::name);
  ASSERT_NE(sync, stage.communications.end());
  for (const std::vector<int64_t>& table : stage.tables[0])
    EXPECT_EQ(num_bytes(type_of(stage.graph, sync->inputs.at(0)), table), 16 * 16 * 4);
}

// Any plan, even with cut updates in it.
TEST(OwnedShares, WholeUpdateIsSentAsItsCells) {
  const Cluster cluster = owners_of(6);
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  const Graph graph = read_text("python/tests/golden/gpt.graph");
  for (const char* kind : {"adafactor", "adamw8", "muon"}) {
    const Optimizer optimizer = optimizer_of(kind);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(fmt::format("{} {}", kind, seed));
      const Plan plan = random_pipelines_for(optimizer, graph, names, 12, seed);
      verify(plan, graph, cluster);
      verify(lower(graph, plan, cluster, optimizer));
    }
  }
}

}  // namespace
}  // namespace medley
