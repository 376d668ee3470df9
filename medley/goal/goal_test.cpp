#include "medley/goal/goal.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/graph/text.h"
#include "medley/planner/planner.h"
#include "medley/sim/simulate.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Objective = Goal::Objective;

DeviceKind kind_of(const std::string& name, double rate, double memory) {
  DeviceKind kind;
  kind.name = name;
  kind.sustained = {{DType::kF32, rate}};
  kind.memory_bandwidth = 100 * rate;
  kind.launch_latency = 1e-6;
  kind.memory_bytes = memory;
  return kind;
}

Cluster cluster_of(std::vector<NodePool> pools, double bandwidth) {
  Cluster cluster;
  Network lan{"lan", false, {}, bandwidth, 1e-5, {}};
  for (const NodePool& pool : pools) lan.connects.push_back(pool.name);
  cluster.networks = {lan, {"bus", true, {}, 1e10, 1e-6, {}}};
  cluster.pools = std::move(pools);
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

class GoalTest : public ::testing::Test {
 protected:
  GoalTest() : graph(parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp.graph")) {}

  // Returns two expensive nodes and three cheap ones of half the speed.
  static Cluster dear_and_cheap() {
    return cluster_of({{"dear", 2, 1, kind_of("whole", 1e9, 1e9), false, 8},
                       {"cheap", 3, 1, kind_of("half", 5e8, 1e9), true, 1}},
                      1e8);
  }

  Request request(const Cluster& cluster, const std::string& strategy = "hap") const {
    return {.graph = graph,
            .cluster = cluster,
            .strategy = strategy,
            .global_batch = 256,
            .devices = {},
            .optimizer = {}};
  }

  static GoalPlan found(const Goal& goal, const Request& wanted) {
    GoalOutcome outcome = plan_for(goal, wanted);
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      ADD_FAILURE() << no->reason;
      return {};
    }
    return std::get<GoalPlan>(std::move(outcome));
  }

  static std::string reason(const Goal& goal, const Request& wanted) {
    const GoalOutcome outcome = plan_for(goal, wanted);
    const auto* no = std::get_if<Infeasible>(&outcome);
    return no ? to_string(*no) : "a plan";
  }

  static std::string refusal(const Goal& goal, const Request& wanted) {
    try {
      (void)plan_for(goal, wanted);
    } catch (const Error& error) {
      EXPECT_EQ(error.blame(), Blame::kCaller);
      return error.what();
    }
    return "accepted";
  }

  Graph graph;
};

TEST_F(GoalTest, WithoutHurryTheCheapNodesDoIt) {
  const Cluster cluster = dear_and_cheap();
  const GoalPlan plan = found({Objective::kCost, 1000}, request(cluster));
  ASSERT_EQ(plan.nodes.size(), 2);
  EXPECT_EQ(plan.nodes[0].used, 0);
  EXPECT_GT(plan.nodes[1].used, 0);
  EXPECT_DOUBLE_EQ(plan.price_per_hour, plan.nodes[1].used);
  EXPECT_DOUBLE_EQ(plan.cost, plan.time.value / 3600 * plan.price_per_hour);
}

TEST_F(GoalTest, ShortDeadlineCostsMore) {
  const Cluster cluster = dear_and_cheap();
  const GoalPlan cheap = found({Objective::kCost, 1000}, request(cluster));
  const GoalPlan fast = found({Objective::kTime, 1000}, request(cluster));
  EXPECT_LT(fast.time.value, cheap.time.value);
  EXPECT_GT(fast.cost, cheap.cost);
  const Seconds between{0.5 * (fast.time.value + cheap.time.value)};
  const GoalPlan middle = found({Objective::kCost, 1000, between}, request(cluster));
  EXPECT_LE(middle.time.value, between.value);
  EXPECT_GE(middle.cost, cheap.cost);
  EXPECT_LE(middle.cost, fast.cost);
  const GoalPlan poor = found({Objective::kTime, 1000, {}, cheap.cost}, request(cluster));
  EXPECT_LE(poor.cost, cheap.cost);
}

// A limit of years has no effect on strategies.
TEST_F(GoalTest, DeadlineOfYearsIsNoLimit) {
  const Cluster cluster = dear_and_cheap();
  const Request asked = request(cluster, "harp");
  const GoalPlan cheap = found({Objective::kCost, 1}, asked);
  for (const double seconds : {1e6, 2.5e7, 9e8, 1e12}) {
    const GoalPlan same = found({Objective::kCost, 1, Seconds{seconds}}, asked);
    EXPECT_DOUBLE_EQ(same.cost, cheap.cost) << seconds;
  }
}

TEST_F(GoalTest, SaysWhatWouldBePossible) {
  const Cluster cluster = dear_and_cheap();
  EXPECT_THAT(reason({Objective::kCost, 1000, Seconds{1e-6}}, request(cluster)),
              AllOf(HasSubstr("no plan makes 1000 steps by 1 us: the fastest found takes "),
                    HasSubstr(" and costs ")));
  EXPECT_THAT(reason({Objective::kTime, 1000, {}, 1e-9}, request(cluster)),
              HasSubstr("no plan makes 1000 steps for 1e-09: the cheapest found takes "));
}

TEST_F(GoalTest, SaysWhatFitsNowhere) {
  const Cluster cluster = cluster_of({{"tiny", 2, 1, kind_of("tiny", 1e9, 1000), false, 1}}, 1e8);
  EXPECT_THAT(reason({Objective::kCost, 10}, request(cluster)), HasSubstr("it lacks"));
}

TEST_F(GoalTest, RefusesWhatMakesNoSense) {
  Cluster cluster = dear_and_cheap();
  EXPECT_THAT(refusal({Objective::kCost, 0}, request(cluster)),
              HasSubstr("steps: found 0, expected at least 1"));
  EXPECT_THAT(refusal({Objective::kCost, 1, Seconds{-1}}, request(cluster)),
              HasSubstr("deadline: found"));
  EXPECT_THAT(refusal({Objective::kCost, 1, {}, 0}, request(cluster)),
              HasSubstr("budget: found 0, expected more than 0"));
  Request named = request(cluster);
  named.devices = {"dear/7/0"};
  EXPECT_THAT(refusal({Objective::kCost, 1}, named), HasSubstr("devices: found \"dear/7/0\""));
  for (NodePool& pool : cluster.pools) pool.price_per_hour = 0;
  EXPECT_THAT(refusal({Objective::kCost, 1}, request(cluster)), HasSubstr("no node has a price"));
  const Cluster large = cluster_of({{"a", 200, 1, kind_of("a", 1e9, 1e9), false, 1},
                                    {"b", 200, 1, kind_of("b", 1e9, 1e9), false, 1}},
                                   1e8);
  EXPECT_THAT(refusal({Objective::kCost, 1}, request(large)),
              HasSubstr("more than 20000 sets of nodes"));
  std::vector<NodePool> pools;  // 2^64 sets
  for (int p = 0; p < 64; ++p) {
    const std::string name = fmt::format("p{}", p);
    pools.push_back({name, 1, 1, kind_of(name, 1e9, 1e9), false, 1});
  }
  const Cluster many = cluster_of(pools, 1e8);
  EXPECT_THAT(refusal({Objective::kCost, 1}, request(many)),
              HasSubstr("more than 20000 sets of nodes"));
}

// Enumerates all sets of nodes, without grouping identical ones.
class Exhaustive {
 public:
  Exhaustive(const Request& request, int64_t steps) : request_(request) {
    std::vector<int> devices;
    for (size_t d = 0; d < request.cluster.devices.size(); ++d)
      devices.push_back(static_cast<int>(d));
    const std::vector<std::vector<int>> nodes = by_node(request.cluster, devices);
    for (uint64_t set = 1; set < uint64_t{1} << nodes.size(); ++set) look_at(nodes, set, steps);
  }

  // Returns (time, cost) of the best for a goal.
  std::optional<std::pair<double, double>> best(const Goal& goal) const {
    std::optional<std::pair<double, double>> best;
    const auto aim = [&](const std::pair<double, double>& each) {
      return goal.objective == Objective::kTime ? each.first : each.second;
    };
    for (const auto& each : all_) {
      if (goal.deadline && each.first > goal.deadline->value) continue;
      if (goal.budget && each.second > *goal.budget) continue;
      if (!best || aim(each) < aim(*best)) best = each;
    }
    return best;
  }

  const std::vector<std::pair<double, double>>& all() const { return all_; }

 private:
  void look_at(const std::vector<std::vector<int>>& nodes, uint64_t set, int64_t steps) {
    Request one = request_;
    for (size_t n = 0; n < nodes.size(); ++n)
      if (set >> n & 1)
        for (const std::string& name : names_of(request_.cluster, nodes[n]))
          one.devices.push_back(name);
    const Outcome outcome = plan(one);
    const auto* plan = std::get_if<Plan>(&outcome);
    if (!plan) return;
    std::set<std::pair<int, int>> used;
    double price = 0;
    for (const Stage& stage : plan->pipelines.at(0).stages)
      for (const std::string& name : stage.mesh.devices) {
        const Device& device = request_.cluster.devices[at(*find_device(request_.cluster, name))];
        if (used.emplace(device.pool, device.node).second)
          price += request_.cluster.pools[at(device.pool)].price_per_hour;
      }
    const Program program = lower(request_.graph, *plan, request_.cluster, {});
    const Nanoseconds step = simulate(program, CostModel(request_.cluster)).step;
    const double time = static_cast<double>(step.value) * 1e-9 * static_cast<double>(steps);
    all_.emplace_back(time, time / 3600 * price);
  }

  const Request& request_;
  std::vector<std::pair<double, double>> all_;
};

TEST_F(GoalTest, IsAsGoodAsTheBestOfAllSets) {
  const auto seeds = static_cast<int>(seeds_of("MEDLEY_GOAL_SEEDS", 3));
  for (int seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto among = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    std::vector<NodePool> pools;
    const int num_pools = among(1, 3);
    for (int p = 0; p < num_pools; ++p) {
      const std::string name = fmt::format("p{}", p);
      const double memory = among(0, 2) == 0 ? 4e5 : 1e9;  // too little for the whole model
      pools.push_back({name,
                       among(1, 2),
                       p == 0 ? among(1, 2) : 1,
                       kind_of("k" + name, 1e8 * among(1, 10), memory),
                       among(0, 1) == 1,
                       0.25 * among(1, 20)});
    }
    const Cluster cluster = cluster_of(pools, 1e6 * among(1, 1000));
    const std::vector<std::string> strategies = {"data-parallel-proportional", "hap", "harp"};
    const Request asked = request(cluster, strategies[at(seed % 3)]);
    const Exhaustive exhaustive(asked, 100);
    std::vector<Goal> goals = {{Objective::kCost, 100}, {Objective::kTime, 100}};
    if (!exhaustive.all().empty()) {
      const auto [time, cost] = exhaustive.all()[at(among(0, 1 << 20)) % exhaustive.all().size()];
      goals.push_back({Objective::kCost, 100, Seconds{time}});
      goals.push_back({Objective::kTime, 100, {}, cost});
      goals.push_back({Objective::kTime, 100, Seconds{time}, cost});
    }
    for (const Goal& goal : goals) {
      SCOPED_TRACE(fmt::format("seed {}, {} by {} for {}",
                               seed,
                               goal.objective == Objective::kCost ? "cost" : "time",
                               goal.deadline ? goal.deadline->value : 0,
                               goal.budget.value_or(0)));
      const auto best = exhaustive.best(goal);
      const GoalOutcome outcome = plan_for(goal, asked);
      const auto* plan = std::get_if<GoalPlan>(&outcome);
      ASSERT_EQ(plan != nullptr, best.has_value());
      if (!plan) continue;
      const bool cost = goal.objective == Objective::kCost;
      EXPECT_DOUBLE_EQ(cost ? plan->cost : plan->time.value, cost ? best->second : best->first);
    }
  }
}

}  // namespace
}  // namespace medley
