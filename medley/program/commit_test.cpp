#include "medley/program/commit.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/program/calls.h"
#include "medley/program/groups.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

Cluster pool_of(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

bool updates(const LoweredStage& stage, const Step& step) {
  const auto* segment = std::get_if<Segment>(&step);
  return segment && std::ranges::any_of(segment->ops, [&](OpId op) {
           const std::string& name = stage.graph.ops[at(op)].name;
           return name == "medley.adamw.default" || name == "medley.next_scale.default";
         });
}

std::vector<Program> random_programs(bool commit, bool scales_loss = false) {
  const Graph graph =
      run_passes(parse_graph(LocalFiles().read("tests/data/mlp.graph"), "tests/data/mlp.graph"));
  const Cluster cluster = pool_of(5);
  std::vector<std::string> names;
  for (const Device& device : cluster.devices) names.push_back(device.name);
  LowerOptions options;
  options.commit = commit;
  Optimizer optimizer;
  optimizer.scales_loss = scales_loss;
  const GraphAnalysis analysis = analyse(graph, optimizer);
  std::vector<Program> programs;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto draw = seed % 3 == 0   ? random_plan
                      : seed % 3 == 1 ? random_pipeline
                                      : random_pipelines;
    programs.push_back(lower(analysis, draw(graph, names, 12, seed), cluster, options));
  }
  return programs;
}

// A contributor to the commit has all gradients, and a device with its result needs no other for
// the update.
TEST(Commit, EverythingAwaitedBeforeItIsNeededAndNothingIsUpdatedBeforeIt) {
  int found = 0;
  std::vector<Program> programs = random_programs(true);
  std::ranges::move(random_programs(true, true), std::back_inserter(programs));
  for (const Program& program : programs)
    for (const LoweredStage& stage : program.stages) {
      if (stage.commit == kNone) continue;
      ++found;
      std::set<int> posted, awaited;
      bool contributed = false, passed = false;
      for (const Function& function : stage.functions)
        for (const Step& step : function.steps)
          if (const auto* post = std::get_if<Post>(&step);
              post && stage.communications[at(post->communication)].lane < 0 &&
              function.kind != FunctionKind::kUpdate)
            posted.insert(post->communication);
      for (const Function& function : stage.functions)
        for (const Step& step : function.steps)
          if (const auto* wait = std::get_if<Wait>(&step);
              wait && function.kind != FunctionKind::kUpdate)
            awaited.insert(wait->communication);
      for (const Step& step : find_function(stage, FunctionKind::kUpdate).steps) {
        if (const auto* post = std::get_if<Post>(&step)) {
          contributed |= post->communication == stage.commit;
          if (!contributed) posted.insert(post->communication);
        } else if (const auto* wait = std::get_if<Wait>(&step)) {
          passed |= wait->communication == stage.commit;
          awaited.insert(wait->communication);
          if (contributed && !passed) ADD_FAILURE() << "waits between post and wait of the commit";
        } else if (updates(stage, step)) {
          EXPECT_TRUE(passed);
        }
        if (contributed)
          for (int communication : posted) EXPECT_TRUE(awaited.contains(communication));
      }
      EXPECT_TRUE(passed);
    }
  EXPECT_GT(found, 120);
}

// Also if the final gradients, which all devices have, would make the norm a local sum.
TEST(Commit, AllDevicesThatUpdateHaveAPartInIt) {
  for (const Program& program : random_programs(true)) {
    std::set<int> updating;
    for (const LoweredStage& stage : program.stages)
      for (const Function& function : stage.functions)
        if (std::ranges::any_of(function.steps,
                                [&](const Step& step) { return updates(stage, step); }))
          updating.insert(stage.devices.begin(), stage.devices.end());
    for (const LoweredStage& stage : program.stages) {
      if (!updating.contains(stage.devices[0]) || updating.size() == 1) continue;
      ASSERT_NE(stage.commit, kNone);
      for (int device = 0; device < static_cast<int>(stage.devices.size()); ++device) {
        const std::vector<int> group =
            group_of(stage, stage.communications[at(stage.commit)], device);
        EXPECT_TRUE(std::ranges::includes(std::set<int>(group.begin(), group.end()), updating));
      }
    }
  }
}

// Gradients computed by several devices in part are spread after the commit.
TEST(Commit, OnlyPlansThatUpdateInPartsSpread) {
  int spread = 0, local = 0;
  for (const Program& program : random_programs(true))
    for (const LoweredStage& stage : program.stages)
      ++(spreads_after_commit(stage) ? spread : local);
  EXPECT_GT(spread, 0);
  EXPECT_GT(local, 0);
}

TEST(Commit, WithoutTheOptionThereIsNone) {
  for (const Program& program : random_programs(false))
    for (const LoweredStage& stage : program.stages) EXPECT_EQ(stage.commit, kNone);
}

}  // namespace
}  // namespace medley
