#include "medley/next_best/next_best.h"
#include "medley/base/at.h"

#include <gtest/gtest.h>

#include "medley/graph/text.h"
#include "medley/synthesis/data_parallel.h"

namespace medley {
namespace {

constexpr const char* kProduct = R"(medley-graph 1
graph "product"
symbols b
%0 = parameter "w" : f32[64, 48]
%1 = batch "x" : f32[b, 64]
%2 = aten.mm.default(%1, %0) : f32[b, 48] @forward "layer"
%3 = aten.mul.Tensor(%2, %2) : f32[b, 48] @forward "square"
%4 = aten.sum.default(%3, none) : f32[] @forward ""
output loss %4
)";

class NextBestOfAProduct : public ::testing::Test {
 protected:
  NextBestOfAProduct() : graph(parse_graph(kProduct, "product.graph")) {
    DeviceKind kind;
    kind.name = "whole";
    kind.sustained = {{DType::kF32, 1e9}};
    kind.memory_bandwidth = 1e9;
    kind.launch_latency = 1e-6;
    kind.memory_bytes = 1e9;
    DeviceKind half = scaled(kind, 0.5);
    half.name = "half";
    cluster.pools = {{"fast", 1, 1, kind, false, 0}, {"slow", 1, 1, half, false, 0}};
    cluster.networks = {{"lan", false, {"fast", "slow"}, 1e8, 1e-6, {}}};
    cluster.devices = list_devices(cluster.pools);
    optimizer.rules.clear();
    plan = plan_of_rows({"fast/0/0", "slow/0/0"}, {{9, 3}});
    plan.parts = {{"speed", {}, {2, 1}}};
  }

  // Returns the least cost over all assignments without forbidden choices.
  static int64_t least_cost(const Pbqp& problem, const std::vector<std::vector<bool>>& forbidden) {
    std::vector<int32_t> choices(problem.unary_of.size(), 0);
    int64_t least = kForbidden;
    for (size_t v = 0; v < choices.size();) {
      bool allowed = true;
      for (size_t u = 0; u < choices.size(); ++u)
        allowed &= forbidden[u].empty() || !forbidden[u][at(choices[u])];
      if (allowed) least = std::min(least, cost(problem, choices));
      for (v = 0; v < choices.size(); ++v) {
        if (++choices[v] < problem.num_choices(static_cast<int>(v))) break;
        choices[v] = 0;
      }
    }
    return least;
  }

  Graph graph;
  Cluster cluster;
  Optimizer optimizer;
  Plan plan;
};

// Forbids every choice of the optimum in turn; each loss equals that of exhaustive search.
TEST_F(NextBestOfAProduct, LossesAreThoseOfExhaustiveSearch) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, optimizer);
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .costs = &costs,
                        .global_batch = 12,
                        .devices = {},
                        .optimizer = optimizer,
                        .cache = {.analysis = &analysis}};
  const NextBest next_best(request, plan);
  const SpmdProblem& problem = next_best.problem();
  const Pbqp& pbqp = problem.pbqp();
  const std::vector<std::vector<bool>> nothing(pbqp.unary_of.size());
  const int64_t optimum = least_cost(pbqp, nothing);
  EXPECT_EQ(next_best.optimum().cost, optimum);
  const std::vector<std::string> names{"w", "layer/mm#0", "square/mul#0", "/sum#0"};
  int asked = 0, lost = 0;
  for (const std::string& name : names) {
    const int variable = problem.variable_of(name);
    if (variable < 0) continue;
    const auto v = at(variable);
    const std::string now = problem.choice_text(variable, next_best.optimum().choices[v]);
    std::vector<std::vector<bool>> forbidden = nothing;
    for (int c = 0; c < pbqp.num_choices(variable); ++c)
      forbidden[v].push_back(problem.choice_text(variable, c) == now);
    const int64_t least = least_cost(pbqp, forbidden);
    const auto found = next_best.without({name}, [&](const auto& text) { return text == now; });
    ASSERT_EQ(found.has_value(), least < kForbidden) << name;
    if (!found) continue;
    ++asked;
    EXPECT_EQ(found->loss.value, (least - optimum) / kTicksPerNanosecond) << name;
    EXPECT_TRUE(found->proved);
    EXPECT_NE(found->choices.at(name), now);
    EXPECT_GT(next_best.simulated(found->plan).step.value, 0);
    lost += found->loss.value > 0;
  }
  EXPECT_GE(asked, 3);
  EXPECT_GT(lost, 0);
}

TEST_F(NextBestOfAProduct, UndecidedVariableHasNoNextBest) {
  const CostModel costs(cluster);
  const GraphAnalysis analysis = analyse(graph, optimizer);
  const Request request{.graph = graph,
                        .cluster = cluster,
                        .costs = &costs,
                        .global_batch = 12,
                        .devices = {},
                        .optimizer = optimizer,
                        .cache = {.analysis = &analysis}};
  const NextBest next_best(request, plan);
  const auto always = [](const std::string&) { return true; };
  EXPECT_FALSE(next_best.without({"no such op"}, always));
  EXPECT_FALSE(next_best.without({"layer/mm#0"}, always));  // the op has to be computed
  Plan exact = plan;
  exact.parts = {{"exact", {40, 24}, {}}};
  EXPECT_FALSE(NextBest::knows(exact));
}

}  // namespace
}  // namespace medley
