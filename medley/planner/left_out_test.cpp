// A candidate that cannot be lowered does not end a search with other candidates.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/candidates/stage_options.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/planner/planner.h"
#include "medley/testing/sample_clusters.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Fails = std::function<bool(const Program& program)>;

class LeftOutCandidates : public ::testing::Test {
 protected:
  LeftOutCandidates()
      : graph(run_passes(parse_graph(LocalFiles().read("tests/data/deep.graph"), "deep.graph"))) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e10}};
    kind.memory_bandwidth = 1e10;
    kind.launch_latency = 1e-7;
    kind.memory_bytes = 1e9;
    cluster = two_speeds(
        2,
        2,
        kind,
        {{"fabric", true, {}, 10e9, 1e-6, {}}, {"lan", false, {"fast", "slow"}, 200e6, 1e-4, {}}});
  }

  // Pricing a program throws if `fails` returns true.
  Request request(const std::string& strategy, const Fails& fails, Blame blame = Blame::kUs) {
    return {.graph = graph,
            .cluster = cluster,
            .strategy = strategy,
            .global_batch = 64,
            .devices = {},
            .optimizer = {},
            .extra_cost = [=](const Program& program, Nanoseconds) -> Nanoseconds {
              if (fails(program)) throw Error(blame, "an op that no rule fits");
              return {};
            },
            .listener = {.left_out = [this](const std::string& why) { left_out.push_back(why); }}};
  }

  static bool is_chain(const Program& program) { return program.stages.size() > 1; }
  static bool is_mesh(const Program& program) { return program.stages.size() == 1; }
  static bool is_any(const Program&) { return true; }

  Graph graph;
  Cluster cluster;
  std::vector<std::string> left_out;
};

TEST_F(LeftOutCandidates, EachStrategyTakesAnotherCandidate) {
  for (const char* strategy : {"auto", "harp", "autohet", "megatron"})
    for (const Fails& fails : {Fails(is_chain), Fails(is_mesh)}) {
      left_out.clear();
      const Outcome found = plan(request(strategy, fails));
      const auto* plan = std::get_if<Plan>(&found);
      if (!plan) {
        EXPECT_THAT(to_string(std::get<Infeasible>(found)), HasSubstr("an op that no rule fits"));
        continue;
      }
      Program stages;
      for (const Pipeline& pipeline : plan->pipelines)
        stages.stages.resize(stages.stages.size() + pipeline.stages.size());
      EXPECT_FALSE(fails(stages)) << strategy;
    }
}

// For each failing type of program, another one becomes the plan.
TEST_F(LeftOutCandidates, AutoFindsAPlanAndSaysWhatItLeftOut) {
  for (const Fails& fails : {Fails(is_chain), Fails(is_mesh)}) {
    left_out.clear();
    ASSERT_TRUE(std::holds_alternative<Plan>(plan(request("auto", fails))));
    EXPECT_THAT(left_out, ElementsAre("an op that no rule fits"));
  }
  left_out.clear();
  const Fails none = [](const Program&) { return false; };
  ASSERT_TRUE(std::holds_alternative<Plan>(plan(request("auto", none))));
  EXPECT_THAT(left_out, IsEmpty());
}

// A search for a mesh prices many: every second one fails, in any order of threads.
TEST_F(LeftOutCandidates, HapTakesAnotherDivision) {
  const Fails wide = [](const Program& program) {
    int64_t ops = std::ssize(program.stages[0].graph.ops);
    return ops % 2 == 1;
  };
  const Outcome all = plan(request("hap", [](const Program&) { return false; }));
  const Outcome some = plan(request("hap", wide));
  EXPECT_TRUE(std::holds_alternative<Plan>(all));
  EXPECT_TRUE(std::holds_alternative<Plan>(some));
}

// Each reason appears once, not once per strategy.
TEST_F(LeftOutCandidates, NoCandidateLeftGivesTheirReason) {
  for (const char* strategy : {"auto", "harp", "megatron", "autohet"}) {
    const Outcome found = plan(request(strategy, is_any));
    ASSERT_TRUE(std::holds_alternative<Infeasible>(found)) << strategy;
    const std::string reason = to_string(std::get<Infeasible>(found));
    const size_t first = reason.find("an op that no rule fits");
    EXPECT_NE(first, std::string::npos) << reason;
    EXPECT_EQ(reason.find("an op that no rule fits", first + 1), std::string::npos) << reason;
  }
}

TEST_F(LeftOutCandidates, TheEnvironmentEndsTheSearch) {
  for (const char* strategy : {"auto", "harp", "hap", "megatron", "autohet"})
    EXPECT_THROW((void)plan(request(strategy, is_any, Blame::kEnvironment)), Error) << strategy;
}

// A device without a rate cannot be priced: its stages have no solution, others have.
TEST_F(LeftOutCandidates, StagesThatCannotBePricedHaveNoSolution) {
  for (auto& pool : cluster.pools)
    if (pool.name == "slow") pool.kind.sustained.clear();
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, {});
  Request asked = request("harp", [](const Program&) { return false; });
  asked.costs = &costs;
  asked.cache.analysis = &analysis;
  StageSynthesis synthesis(asked, kLayersOfChains);
  const StageConfig config{16, 4, 0, StageStyle::kBest};
  const StageQuery fast{0, 2, {{0, 1}}, config}, slow{0, 2, {{2, 3}}, config};
  synthesis.solve_wholes({slow, fast});
  EXPECT_TRUE(synthesis.whole(fast));
  EXPECT_FALSE(synthesis.whole(slow));
  EXPECT_THAT(synthesis.failure(), HasSubstr("no sustained rate for: f32"));
}

}  // namespace
}  // namespace medley
