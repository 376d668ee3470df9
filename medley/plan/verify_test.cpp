#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/plan/plan.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class VerifyPlan : public ::testing::Test {
 protected:
  VerifyPlan() {
    std::ifstream in("tests/data/mlp.graph");
    std::ostringstream text;
    text << in.rdbuf();
    graph = parse_graph(text.str(), "mlp.graph");

    NodePool pool;
    pool.name = "fast";
    pool.devices_per_node = 3;
    cluster.pools = {pool};
    cluster.devices = list_devices(cluster.pools);

    plan.global_batch = 8;
    plan.parts = {{"hidden", {24, 8}, {}}, {"speed", {}, {2, 1}}};
    Pipeline pipeline;
    pipeline.microbatches = {{6, {6, 0}}, {2, {1, 1}}};
    pipeline.stages = {{.mesh = {{"data"}, {2}, {"fast/0/0", "fast/0/2"}},
                        .first = "",
                        .placements = {{"fc1.*", "S(0, hidden)"}, {"fc2.weight", "R"}},
                        .batch = {{"x", "S(0, rows)"}},
                        .ops = {{"fc2/addmm#0", "k hidden"}},
                        .updates = {{"*", "S(0, speed)"}}}};
    plan.pipelines = {pipeline};
  }

  std::string refusal(const std::function<void(Plan&)>& change, const std::string& meet = "") {
    Plan changed = plan;
    change(changed);
    try {
      verify(changed, graph, cluster, meet);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
      return error.what();
    }
    return "accepted";
  }

  std::string refusal_of_stage(const std::function<void(Stage&)>& change) {
    return refusal([&](Plan& p) { change(p.pipelines[0].stages[0]); });
  }

  Graph graph;
  Cluster cluster;
  Plan plan;
};

TEST_F(VerifyPlan, AcceptsUnequalSharesAndZeros) {
  EXPECT_EQ(refusal([](Plan&) {}), "accepted");
  EXPECT_EQ(refusal([&](Plan& p) {
              p.graph_hash = hash(graph);
              p.cluster_hash = hash(cluster);
            }),
            "accepted");
}

TEST_F(VerifyPlan, AnotherGraphOrCluster) {
  EXPECT_THAT(refusal([](Plan& p) { p.graph_hash = std::string(64, 'a'); }),
              ::testing::AllOf(StartsWith("graph_hash: found aaaaaaaaaaaa..., of another graph"),
                               HasSubstr("of graph \"mlp\": plan again")));
  EXPECT_THAT(refusal([](Plan& p) { p.cluster_hash = std::string(64, 'b'); }),
              StartsWith("cluster_hash: found bbbbbbbbbbbb..., of another cluster, expected "));
}

TEST_F(VerifyPlan, Devices) {
  EXPECT_EQ(refusal_of_stage([](Stage& s) { s.mesh.devices[1] = "fast/0/7"; }),
            "pipelines[0].stages[0].mesh.devices[1]: found \"fast/0/7\", expected a device of the "
            "cluster, such as \"fast/0/0\"");
  EXPECT_EQ(refusal_of_stage([](Stage& s) { s.mesh.devices[1] = "fast/0/0"; }),
            "pipelines[0].stages[0].mesh.devices[1]: found \"fast/0/0\", expected a device that is "
            "not used in pipelines[0].stages[0].mesh.devices[0]");
  EXPECT_EQ(refusal_of_stage([](Stage& s) { s.mesh.shape = {3}; }),
            "pipelines[0].stages[0].mesh.shape: found [3], expected sizes whose product is the "
            "number of devices, 2");
}

TEST_F(VerifyPlan, Rows) {
  const auto change_first = [](Microbatch first) {
    return [first](Plan& p) { p.pipelines[0].microbatches[0] = first; };
  };
  EXPECT_EQ(refusal(change_first({6, {6, 1}})),
            "pipelines[0].microbatches[0].lengths: found [6, 1], which add up to 7, expected a sum "
            "of 6 rows");
  EXPECT_EQ(refusal(change_first({5, {5, 0}})),
            "pipelines[0].microbatches: found 7 rows in all micro-batches together, expected the "
            "global batch of 8");
  EXPECT_EQ(refusal(change_first({6, {7, -1}})),
            "pipelines[0].microbatches[0].lengths[1]: found -1, expected a number that is not "
            "negative");
  EXPECT_EQ(refusal(change_first({6, {6}})),
            "pipelines[0].microbatches[0].lengths: found 1 lengths, expected 2, one for each "
            "device");
  EXPECT_EQ(refusal([](Plan& p) { p.pipelines[0].microbatches[1].lengths.clear(); }),
            "pipelines[0].microbatches[1].lengths: found [], expected lengths in all micro-batches "
            "or in none");
}

TEST_F(VerifyPlan, RowsThatMeetNeedOneMicrobatch) {
  EXPECT_EQ(refusal([](Plan&) {}, "rows meet in bn/batch_norm#0"),
            "pipelines: found 2 micro-batches, expected one, because rows meet in bn/batch_norm#0");
  EXPECT_EQ(
      refusal([](Plan& p) { p.loss_over_microbatches = true; }, "rows meet in bn/batch_norm#0"),
      "accepted");
  EXPECT_EQ(refusal(
                [](Plan& p) {
                  p.pipelines[0].microbatches = {{8, {6, 2}}};
                },
                "bn/x#0"),
            "accepted");
}

// A second pipeline of a device gets the micro-batch of two rows.
TEST_F(VerifyPlan, EveryPipelineIsVerified) {
  const auto refusal_of_second = [&](const std::function<void(Pipeline&)>& change) {
    return refusal([&](Plan& p) {
      Pipeline& second = p.pipelines.emplace_back();
      second.microbatches = {{2, {}}};
      second.stages = {{.mesh = {{"data"}, {1}, {"fast/0/1"}}}};
      p.pipelines[0].microbatches.pop_back();
      change(second);
    });
  };
  EXPECT_EQ(refusal_of_second([](Pipeline&) {}), "accepted");
  EXPECT_EQ(refusal_of_second([](Pipeline& p) { p.microbatches[0].rows = 3; }),
            "pipelines: found [6, 3] rows in their micro-batches, 9 together, expected the global "
            "batch of 8");
  EXPECT_EQ(refusal_of_second([](Pipeline& p) { p.stages[0].mesh.devices = {"fast/0/2"}; }),
            "pipelines[1].stages[0].mesh.devices[0]: found \"fast/0/2\", expected a device that is "
            "not used in pipelines[0].stages[0].mesh.devices[1]");
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[0].first = "fc2/t#0"; }),
              StartsWith("pipelines[1].stages[0].first: found \"fc2/t#0\", expected none"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[0].recompute = "full"; }),
              StartsWith("pipelines[1].stages[0].recompute: found \"full\""));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) {
                p.in_flight = {2, 1};
              }),
              StartsWith("pipelines[1].in_flight: found 2 counts, expected 1"));
  EXPECT_THAT(
      refusal_of_second([](Pipeline& p) { p.stages[0].placements["fc9"] = "R"; }),
      StartsWith("pipelines[1].stages[0].placements[\"fc9\"]: found a name that the graph"));
  // Only one pipeline has rows.
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[0].batch["x"] = "S(0, rows)"; }),
              StartsWith("pipelines[1].stages[0].batch[\"x\"]: found \"S(0, rows)\", expected "
                         "another part"));
}

// Three pipelines, with parameters of two owners and of one.
TEST_F(VerifyPlan, OwnersAreOfPipelines) {
  const auto divided = [](const Choices& owners) {
    return [owners](Plan& p) {
      p.global_batch = 24;
      p.parts = {{"owners", {}, {3, 0, 1}}, {"pair", {}, {1, 1}}, {"none", {0, 0, 0}, {}}};
      p.pipelines[0].stages[0] = {.mesh = {{"data"}, {2}, {"fast/0/0", "fast/0/1"}}};
      p.pipelines.resize(3, {.microbatches = {{8, {}}}, .stages = {{}}});
      p.pipelines[1].stages[0].mesh = {{"data"}, {1}, {"fast/0/2"}};
      p.pipelines[2].stages[0].mesh = {{"data"}, {1}, {"fast/0/3"}};
      p.owners = owners;
    };
  };
  NodePool pool{.name = "fast", .devices_per_node = 4};
  cluster.pools = {pool};
  cluster.devices = list_devices(cluster.pools);
  EXPECT_EQ(refusal(divided({{"*", "all"}, {"fc1.*", "owners"}, {"fc2.weight", "even"}})),
            "accepted");
  EXPECT_THAT(refusal(divided({{"fc9.*", "owners"}})),
              StartsWith("owners[\"fc9.*\"]: found a name that matches nothing, expected that of a "
                         "parameter of graph \"mlp\", such as \"fc"));
  EXPECT_EQ(refusal(divided({{"*", "pair"}})),
            "owners[\"*\"]: found \"pair\", a part of 2, expected a part of 3, one for each "
            "pipeline");
  EXPECT_EQ(refusal(divided({{"*", "none"}})),
            "owners[\"*\"]: found \"none\", whose lengths are all 0, expected an owner: a pipeline "
            "that holds something");
  EXPECT_EQ(refusal(divided({{"*", "owner"}})),
            "owners[\"*\"]: found \"owner\", expected \"all\" or a part of the plan, such as "
            "\"owners\"");
  EXPECT_THAT(refusal(divided({{"*", "rows"}})),
              StartsWith("owners[\"*\"]: found \"rows\", expected \"all\" or a part of the plan"));
  EXPECT_EQ(refusal([](Plan& p) {
              p.owners = {{"*", "all"}};
            }),
            "owners: found owners, expected none: the only pipeline updates all parameters");
}

TEST_F(VerifyPlan, TextsOfTwoAxesAreJoined) {
  const auto two_axes = [](const std::string& placement) {
    return [placement](Stage& s) {
      s.mesh.shape = {2, 1};
      s.mesh.axes = {"data", "model"};
      s.ops.clear();
      s.updates.clear();
      s.batch.clear();
      s.placements = {{"fc2.weight", placement}};
    };
  };
  EXPECT_EQ(refusal_of_stage(two_axes("R x S(0, even)")), "accepted");
  const std::string place = "pipelines[0].stages[0].placements[\"fc2.weight\"]: found ";
  EXPECT_EQ(refusal_of_stage(two_axes("R")),
            place + "\"R\", which is for 1 axes, expected 2, as the mesh has");
  EXPECT_EQ(refusal_of_stage(two_axes("R x S(0, rows)")),
            place +
                "\"R x S(0, rows)\", expected another part on axis \"model\": rows are divided "
                "over the first axis");
}

TEST_F(VerifyPlan, RecomputeIsOneOfThree) {
  for (const std::string_view how : kRecompute)
    EXPECT_EQ(refusal_of_stage([&](Stage& s) { s.recompute = how; }), "accepted");
  EXPECT_EQ(refusal_of_stage([](Stage& s) { s.recompute = "full"; }),
            "pipelines[0].stages[0].recompute: found \"full\", expected \"none\", \"all\" or "
            "\"blocks\"");
}

TEST_F(VerifyPlan, Stages) {
  const auto refusal_of_second = [&](auto change) {
    return refusal([&](Plan& p) {
      Stage second;
      second.first = "fc2/t#0";
      second.mesh = {{"data"}, {1}, {"fast/0/1"}};
      p.pipelines[0].stages.push_back(second);
      change(p.pipelines[0]);
    });
  };
  EXPECT_EQ(refusal_of_second([](Pipeline&) {}), "accepted");
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[1].first = ""; }),
              StartsWith("pipelines[0].stages[1].first: found none, expected a forward op"));
  EXPECT_THAT(
      refusal_of_second([](Pipeline& p) { p.stages[1].first = "fc2/t#7"; }),
      HasSubstr("\"fc2/t#7\", expected a forward op of graph \"mlp\", such as \"fc2/t#0\""));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[0].first = "fc1/t#0"; }),
              StartsWith("pipelines[0].stages[0].first: found \"fc1/t#0\", expected none"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) {
                p.stages[1].rows = {1, 2};
              }),
              StartsWith("pipelines[0].stages[1].rows: found 2 shares, expected 1"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[0].rows = {1}; }),
              StartsWith("pipelines[0].stages[0].rows: found shares, expected none"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.schedule = "h1f1b"; }),
              StartsWith("pipelines[0].in_flight: found none, expected a count for each stage"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) {
                p.in_flight = {1, 2};
              }),
              StartsWith("pipelines[0].in_flight: found [1, 2], expected positive counts"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.in_flight = {2}; }),
              StartsWith("pipelines[0].in_flight: found 1 counts, expected 2"));
  EXPECT_EQ(refusal_of_second([](Pipeline& p) { p.deferred_weights = {0, 2}; }), "accepted");
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.deferred_weights = {0}; }),
              StartsWith("pipelines[0].deferred_weights: found 1 counts, expected 2"));
  EXPECT_THAT(
      refusal_of_second([](Pipeline& p) {
        p.deferred_weights = {1, 2};
      }),
      StartsWith("pipelines[0].deferred_weights: found [1, 2], expected 0 for the first stage"));
  EXPECT_THAT(refusal_of_second([](Pipeline& p) { p.stages[1].batch["*"] = "S(0, rows)"; }),
              HasSubstr("another part, or \"rows\" in the stage"));
}

TEST_F(VerifyPlan, Parts) {
  EXPECT_EQ(refusal([](Plan& p) {
              p.parts[1].lengths = {1, 2};
            }),
            "parts[1]: found both, expected one of \"lengths\" and \"shares\"");
  EXPECT_THAT(refusal([](Plan& p) { p.parts[0].name = "rows"; }),
              StartsWith("parts[0].name: found \"rows\", expected a name"));
  EXPECT_THAT(refusal([](Plan& p) { p.parts[0].name = "speed"; }),
              StartsWith("parts[1].name: found \"speed\", expected a name that no other"));
  EXPECT_THAT(refusal([](Plan& p) {
                p.parts[1].shares = {1, 1e-300};
              }),
              StartsWith("parts[1].shares: found 1e-300"));
  EXPECT_EQ(
      refusal([](Plan& p) {
        p.parts[0].lengths = {8, 8, 16};
      }),
      "pipelines[0].stages[0].placements[\"fc1.*\"]: found \"S(0, hidden)\", whose part is for 3 "
      "devices, expected a part for 2, the size of axis \"data\"");
  EXPECT_EQ(
      refusal([](Plan& p) {
        p.parts[0].lengths = {24, 9};
      }),
      "pipelines[0].stages[0].placements[\"fc1.*\"]: found \"S(0, hidden)\", whose lengths add up "
      "to 33, expected a sum that divides dim 0 of \"fc1.weight\", 32");
}

TEST_F(VerifyPlan, NamesThatMatchNothing) {
  EXPECT_EQ(
      refusal_of_stage([](Stage& s) { s.placements["fc2.wieght"] = "R"; }),
      "pipelines[0].stages[0].placements[\"fc2.wieght\"]: found a name that the graph does not "
      "have, expected the name of a parameter or buffer of graph \"mlp\", such as "
      "\"fc2.weight\"; tied weights have one name");
  EXPECT_THAT(refusal_of_stage([](Stage& s) { s.updates["fc3.*"] = "R"; }),
              HasSubstr("found a pattern that matches nothing, expected the name of a parameter"));
  EXPECT_THAT(refusal_of_stage([](Stage& s) { s.batch["z"] = "R"; }),
              HasSubstr("expected the name of a batch input of graph \"mlp\", such as \"x\""));
}

TEST_F(VerifyPlan, Texts) {
  const auto placements = [&](const char* text) {
    return refusal_of_stage([&](Stage& s) { s.placements["fc1.weight"] = text; });
  };
  const std::string place = "pipelines[0].stages[0].placements[\"fc1.weight\"]: found ";
  EXPECT_THAT(placements("S[0]"), StartsWith(place + "\"S[0]\", expected \"R\", \"P\""));
  EXPECT_EQ(placements("R x R"),
            place + "\"R x R\", which is for 2 axes, expected 1, as the mesh has");
  EXPECT_EQ(placements("P"),
            place + "\"P\", expected \"R\" or \"S(...)\": nothing is stored as a partial sum");
  EXPECT_EQ(placements("S(2, hidden)"),
            place + "\"S(2, hidden)\", expected a dim below 2, the rank of \"fc1.weight\"");
  EXPECT_EQ(placements("S(0, hiden)"),
            place + "\"S(0, hiden)\", expected a part of the plan, such as \"hidden\"");
  EXPECT_EQ(placements("S(0, rows)"),
            place +
                "\"S(0, rows)\", expected another part: dim 0 of \"fc1.weight\" has no rows of "
                "the batch");
  EXPECT_THAT(refusal_of_stage([](Stage& s) { s.ops["fc1/addmm#0"] = "n nowhere"; }),
              HasSubstr("ops[\"fc1/addmm#0\"]: found \"n nowhere\", expected a part of the plan"));
  EXPECT_THAT(refusal([](Plan& p) {
                for (Microbatch& m : p.pipelines[0].microbatches) m.lengths.clear();
              }),
              HasSubstr("batch[\"x\"]: found \"S(0, rows)\", expected another part, or \"lengths\" "
                        "in the micro-batches"));
}

}  // namespace
}  // namespace medley
