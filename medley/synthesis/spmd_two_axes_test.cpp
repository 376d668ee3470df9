// Tests synthesis on 2-D meshes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <sstream>

#include "medley/base/at.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/planner/planner.h"
#include "medley/sharding/parts.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/spmd.h"

namespace medley {
namespace {

Cluster nodes_of(int nodes, int per_node, double between, double inside) {
  Cluster cluster;
  NodePool pool;
  pool.name = "p";
  pool.kind = {"k", {}, {{DType::kF32, 1e13}, {DType::kF64, 5e12}}, 4e10, 1e12, 2e-6};
  pool.count = nodes;
  pool.devices_per_node = per_node;
  cluster.pools = {pool};
  cluster.networks = {{"lan", false, {"p"}, between, 1e-5, std::nullopt}};
  if (per_node > 1) cluster.networks.push_back({"fabric", true, {}, inside, 2e-6, std::nullopt});
  for (int i = 0; i < nodes * per_node; ++i)
    cluster.devices.push_back(
        {fmt::format("p/{}/{}", i / per_node, i % per_node), 0, i / per_node, i % per_node});
  return cluster;
}

SpmdMesh mesh_of(const CostModel& costs, const std::vector<int64_t>& shape, int64_t rows) {
  std::vector<int> devices(
      at(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
  std::iota(devices.begin(), devices.end(), 0);
  const std::vector<double> even(at(shape[0]), 1.0);
  return {
      costs, devices, {{"rows", {}, {}}, {"even", {}, {}}}, {rows, apportion(rows, even)}, shape};
}

Graph graph_of(const std::string& name) {
  std::ifstream file("tests/data/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return parse_graph(text.str(), name);
}

struct Found {
  int64_t cost = 0;
  bool proved = false;
  Stage stage;
};

Found optimum(const GraphAnalysis& analysis,
              const Cluster& cluster,
              const std::vector<int64_t>& shape,
              int64_t rows,
              const SpmdOptions& options = {}) {
  const CostModel costs(cluster);
  OpCatalogue catalogue(
      analysis.prepared->graph, *analysis.factors, mesh_of(costs, shape, rows), SpmdPricing{});
  const SpmdProblem problem(*analysis.prepared, catalogue, options);
  const auto solution = solve(problem.pbqp(), search_options());
  return {solution->cost,
          solution->cost == solution->lower_bound,
          problem.stage(solution->choices, {})};
}

constexpr double kThin = 1.25e10, kFast = 3e11;

// Two nodes of four. All-reducing a quarter in each of four pairs through one port takes as long as
// one pair with all of it; inside nodes no link is shared.
TEST(SpmdMesh, GroupsBetweenNodesShareTheirPort) {
  const CostModel costs(nodes_of(2, 4, kThin, kFast));
  SpmdMesh mesh = mesh_of(costs, {2, 4}, 64);
  const FactoredShape shape{1, {1 << 10, 1 << 16}};
  const auto ticks =
      [&](CommunicationKind kind, std::vector<int> devices, std::vector<int64_t> lengths) {
        return static_cast<double>(
            costs.collective({kind, std::move(devices), std::move(lengths), 1}).value.value *
            kTicksPerNanosecond);
      };
  const AxisPlacement cut = sharded(1, 1);
  const double between =
      static_cast<double>(mesh.redistribution(shape, {partial_sum(), cut}, {replicated(), cut}));
  EXPECT_NEAR(between / ticks(CommunicationKind::kAllReduce, {0, 4}, {1 << 26}), 1, 0.01);
  const double inside =
      static_cast<double>(mesh.redistribution(shape, {cut, partial_sum()}, {cut, replicated()}));
  EXPECT_NEAR(inside, ticks(CommunicationKind::kAllReduce, {0, 1, 2, 3}, {1 << 25}), 1);
}

// Every pair of devices has its own fabric, so no axis shares ports.
TEST(SpmdMesh, GroupsOnAFabricDoNotWaitForEachOther) {
  const CostModel costs(nodes_of(1, 4, kThin, kFast));
  SpmdMesh mesh = mesh_of(costs, {2, 2}, 64);
  const FactoredShape shape{1, {1 << 10, 1 << 16}};
  const AxisPlacement cut = sharded(1, 1);
  const auto expected = costs.collective({CommunicationKind::kAllReduce, {0, 2}, {1 << 25}, 1});
  EXPECT_NEAR(
      static_cast<double>(mesh.redistribution(shape, {partial_sum(), cut}, {replicated(), cut})),
      static_cast<double>(expected.value.value * kTicksPerNanosecond),
      1);
}

// For compute, rows divided over two axes equal rows divided over one.
TEST(OpCatalogue, RowsCutTwiceTakeWhatTheirPieceTakes) {
  const GraphAnalysis analysis = analyse(graph_of("mlp.graph"), {});
  const CostModel costs(nodes_of(2, 4, kThin, kFast));
  OpCatalogue two(analysis.prepared->graph, *analysis.factors, mesh_of(costs, {2, 4}, 64), {});
  OpCatalogue one(analysis.prepared->graph, *analysis.factors, mesh_of(costs, {8}, 64), {});
  int compared = 0;
  for (size_t op = 0; op < analysis.prepared->graph.ops.size(); ++op) {
    const OpChoices &on_two = two.of(static_cast<OpId>(op)),
                    &on_one = one.of(static_cast<OpId>(op));
    for (size_t c = 0; c < on_two.choices.size(); ++c)
      for (size_t d = 0; d < on_one.choices.size(); ++d) {
        const AxisChoice &outer = on_two.choices[c][0], &inner = on_two.choices[c][1];
        if (outer != on_one.choices[d][0] || outer.choice.kind != ChoiceKind::kCut ||
            outer.choice.part != 0 || inner.choice.cut != outer.choice.cut)
          continue;
        EXPECT_EQ(on_two.costs[c], on_one.costs[d]) << analysis.prepared->names[op];
        ++compared;
      }
  }
  EXPECT_GT(compared, 10);
}

constexpr const char* kSquares = R"(medley-graph 1
graph "squares"
symbols b
%0 = parameter "w" : f32[1024, 512]
%1 = batch "x" : f32[b, 1024]
%2 = aten.mm.default(%1, %0) : f32[b, 512] @forward "layer"
%3 = aten.mul.Tensor(%2, %2) : f32[b, 512] @forward "square"
%4 = aten.sum.default(%3, none) : f32[] @forward ""
output loss %4
)";

// Costs of the choices of all ops and the placements of w and x, summed by hand: each op, and each
// redistribution between producer and reader. The matmul's result is redistributed once, for both
// operands of its square.
class Squares {
 public:
  Squares(const GraphAnalysis& analysis, OpCatalogue& catalogue)
      : analysis_(analysis), catalogue_(catalogue), mesh_(catalogue.mesh()) {
    for (size_t i = 0; i < analysis.prepared->graph.ops.size(); ++i)
      ops_.push_back(&catalogue.of(static_cast<OpId>(i)));
  }

  int64_t least() {
    const AxisPlacement none = replicated();
    std::vector<PlacementId> x, w;
    for (const AxisPlacement& outer : {none, sharded(0, 0)})
      for (const AxisPlacement& inner : {none, sharded(0, 1)})
        x.push_back(mesh_.id(Placement{outer, inner}));
    const std::vector<AxisPlacement> axis{none, sharded(0, 1), sharded(1, 1)};
    for (const AxisPlacement& outer : axis)
      for (const AxisPlacement& inner : axis)
        if (outer == none || outer != inner) w.push_back(mesh_.id(Placement{outer, inner}));
    const OpChoices &mm = of("aten.mm.default"), &mul = of("aten.mul.Tensor"),
                    &sum = of("aten.sum.default"), &add = of("medley.accumulate.default");
    std::set<PlacementId> products;
    for (const std::vector<PlacementId>& placements :
         {mm.results[0], mul.operands[0], mul.operands[1]})
      products.insert(placements.begin(), placements.end());
    int64_t least = kForbidden;
    for (size_t a = 0; a < mm.choices.size(); ++a) {
      const int64_t read =
          mm.costs[a] + cheapest(1, x, mm.operands[0][a]) + cheapest(0, w, mm.operands[1][a]);
      for (size_t b = 0; b < mul.choices.size(); ++b) {
        int64_t shared = kForbidden;
        for (const PlacementId placement : products)
          shared = std::min(shared,
                            cost(2, mm.results[0][a], placement) +
                                cost(2, placement, mul.operands[0][b]) +
                                cost(2, placement, mul.operands[1][b]));
        const int64_t squared = read + mul.costs[b] + shared;
        for (size_t c = 0; c < sum.choices.size(); ++c)
          for (size_t d = 0; d < add.choices.size(); ++d)
            least = std::min(least,
                             squared + sum.costs[c] + add.costs[d] +
                                 cost(3, mul.results[0][b], sum.operands[0][c]) +
                                 cost(4, sum.results[0][c], add.operands[0][d]) +
                                 in_buckets(5, add.results[0][d], mesh_.id(Placement{none, none})));
      }
    }
    return least;
  }

 private:
  const OpChoices& of(std::string_view name) {
    const std::vector<Op>& ops = analysis_.prepared->graph.ops;
    const auto found = std::ranges::find_if(ops, [&](const Op& op) { return op.name == name; });
    return *ops_.at(at(found - ops.begin()));
  }
  int64_t cost(ValueId value, PlacementId from, PlacementId to) {
    return static_cast<int64_t>(mesh_.redistribution(catalogue_.shape_id(value), from, to));
  }
  int64_t in_buckets(ValueId value, PlacementId from, PlacementId to) {
    return std::llround(mesh_.redistribution(catalogue_.shape_id(value), from, to, true));
  }
  int64_t cheapest(ValueId value, const std::vector<PlacementId>& from, PlacementId to) {
    int64_t least = kForbidden;
    for (const PlacementId placement : from) least = std::min(least, cost(value, placement, to));
    return least;
  }

  const GraphAnalysis& analysis_;
  OpCatalogue& catalogue_;
  SpmdMesh& mesh_;
  std::vector<const OpChoices*> ops_;
};

TEST(SpmdProblem, OnTwoAxesIsWhatTryingAllChoicesSays) {
  Optimizer none;
  none.rules.clear();
  const GraphAnalysis analysis = analyse(parse_graph(kSquares, "squares.graph"), none);
  std::set<std::string> products;
  for (const double between : {1e9, 1e10, 1e11})
    for (const int64_t rows : {2, 32, 512}) {
      const Cluster cluster = nodes_of(2, 2, between, 1e11);
      const CostModel costs(cluster);
      OpCatalogue catalogue(
          analysis.prepared->graph, *analysis.factors, mesh_of(costs, {2, 2}, rows), SpmdPricing{});
      const Found found = optimum(analysis, cluster, {2, 2}, rows);
      EXPECT_TRUE(found.proved);
      EXPECT_EQ(found.cost, Squares(analysis, catalogue).least());
      products.insert(found.stage.ops.at("layer/mm#0"));
    }
  EXPECT_GT(products.size(), 1u);
}

// The axis may come first or last.
TEST(SpmdProblem, AnAxisOfOneDeviceChangesNothing) {
  for (const char* name : {"mlp.graph", "gpt.graph"}) {
    const GraphAnalysis analysis = analyse(graph_of(name), {});
    const Cluster cluster = nodes_of(4, 1, kThin, kFast);
    const Found one = optimum(analysis, cluster, {4}, 16);
    const Found first = optimum(analysis, cluster, {1, 4}, 16);
    const Found last = optimum(analysis, cluster, {4, 1}, 16);
    EXPECT_TRUE(one.proved && first.proved && last.proved);
    EXPECT_EQ(first.cost, one.cost) << name;
    EXPECT_EQ(last.cost, one.cost) << name;
  }
}

// Micro-batches of four rows are too few for eight devices. One axis would have to cut the tokens,
// whose keys and values then travel between nodes.
TEST(SpmdProblem, TensorsAreCutInsideNodesAndRowsBetweenThem) {
  const GraphAnalysis analysis = analyse(graph_of("gpt.graph"), {});
  const Cluster cluster = nodes_of(2, 4, kThin, kFast);
  SpmdOptions options;
  options.microbatches = 16;
  const Found two = optimum(analysis, cluster, {2, 4}, 4, options);
  const Found one = optimum(analysis, cluster, {8}, 4, options);
  EXPECT_TRUE(two.proved && one.proved);
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    const auto placement = [&](const std::string& name) {
      return two.stage.placements.at(block + name);
    };
    const auto choice = [&](const std::string& name) { return two.stage.ops.at(block + name); };
    EXPECT_EQ(placement("mlp.up.weight"), "R x S(0, even)");
    EXPECT_EQ(placement("mlp.down.weight"), "R x S(1, even)");
    EXPECT_EQ(placement("attention.out.weight"), "R x S(1.0, even)");
    EXPECT_EQ(choice("mlp.up/contract#0"), "d0 rows x n even");
    EXPECT_EQ(choice("mlp.down/contract#0"), "d0 rows x k even");
    EXPECT_EQ(choice("attention/attention#0"), "b rows x g even");
  }
  EXPECT_EQ(two.stage.batch.at("input_ids"), "S(0, rows) x R");
  EXPECT_GT(static_cast<double>(one.cost), 1.15 * static_cast<double>(two.cost));
}

// If all links are equal, two axes gain nothing and cost next to nothing.
TEST(SpmdProblem, OnEqualLinksNothingIsLost) {
  const GraphAnalysis analysis = analyse(graph_of("gpt.graph"), {});
  const Cluster cluster = nodes_of(1, 8, kThin, kFast);
  for (const int64_t rows : {8, 64}) {
    const Found two = optimum(analysis, cluster, {2, 4}, rows);
    const Found one = optimum(analysis, cluster, {8}, rows);
    EXPECT_TRUE(two.proved && one.proved);
    EXPECT_LT(static_cast<double>(two.cost), 1.005 * static_cast<double>(one.cost)) << rows;
  }
}

Request request_of(const Graph& graph,
                   const Cluster& cluster,
                   const CostModel& costs,
                   const GraphAnalysis& analysis,
                   int64_t batch) {
  return {.graph = graph,
          .cluster = cluster,
          .costs = &costs,
          .strategy = "hap",
          .global_batch = batch,
          .microbatches = 1,
          .devices = {},
          .optimizer = {},
          .cache = {.analysis = &analysis}};
}

// The optimum of two axes is below that of one here, so the bound of one is insufficient.
TEST(Hap, TheBoundIsOneOfBothMeshes) {
  const Graph graph = graph_of("gpt.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  const Cluster cluster = nodes_of(2, 4, kThin / 10, kFast);
  const CostModel costs(cluster);
  const auto ticks = static_cast<double>(
      spmd_lower_bound(request_of(graph, cluster, costs, analysis, 8)).value * kTicksPerNanosecond);
  const auto two = static_cast<double>(optimum(analysis, cluster, {2, 4}, 8).cost);
  const auto one = static_cast<double>(optimum(analysis, cluster, {8}, 8).cost);
  EXPECT_LE(ticks, two);
  EXPECT_GT(ticks, 0.5 * two);
  EXPECT_GT(one, 3 * two);
}

// Eight rows do not justify the exchange of all gradients over ten gigabit per second.
TEST(Hap, TakesAMeshOfNodesWhereThatIsFaster) {
  const Graph graph = graph_of("gpt.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  const Cluster cluster = nodes_of(2, 4, kThin / 10, kFast);
  const CostModel costs(cluster);
  const Request request = request_of(graph, cluster, costs, analysis, 8);
  const auto plan_by = [&](const std::string& strategy) {
    Request asked = request;
    asked.strategy = strategy;
    return std::get<Plan>(plan(asked));
  };
  const auto step = [&](const std::string& strategy) {
    const Program program = lower(analysis, plan_by(strategy), cluster);
    return static_cast<double>(simulate(program, costs).step.value);
  };
  const Plan plan = plan_by("hap");
  EXPECT_EQ(plan.pipelines[0].stages[0].mesh.shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(parse_plan(print(plan), "plan.json"), plan);
  verify(plan, graph, cluster);
  EXPECT_LT(step("hap"), 0.5 * step("data-parallel-even"));
}

}  // namespace
}  // namespace medley
