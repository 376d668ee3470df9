// Executes moves on values that are their own positions in the whole value.

#include "medley/elastic/reshard.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/boxes/cells.h"
#include "medley/graph/dtype.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/ops/update_ops.h"
#include "medley/testing/random_plan.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Cluster six_devices(int per_node = 1) {
  Cluster cluster;
  cluster.pools = {{"a", 6 / per_node, per_node, {}, false, 0}};
  cluster.pools[0].kind.memory_bytes = 1 << 30;
  cluster.networks = {{"lan", false, {"a"}, 1e9, 1e-5, {}}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

std::vector<std::string> names_without(const Cluster& cluster, int lost) {
  std::vector<std::string> names;
  for (size_t d = 0; d < cluster.devices.size(); ++d)
    if (static_cast<int>(d) != lost) names.push_back(cluster.devices[d].name);
  return names;
}

std::vector<int> numbers_without(const Cluster& cluster, int lost) {
  std::vector<int> numbers;
  for (int d = 0; d < static_cast<int>(cluster.devices.size()); ++d)
    if (d != lost) numbers.push_back(d);
  return numbers;
}

Graph read_graph(const char* path) {
  return run_passes(parse_graph(LocalFiles().read(path), path));
}

// Returns the positions of a box's elements in the whole value: the content of a device's shard.
std::vector<int32_t> places(const Layout& layout, const Box& box) {
  const Runs runs = runs_of(layout.factors, box);
  std::vector<int32_t> all;
  for (int64_t run = 0; run < runs.count(); ++run)
    for (int64_t i = 0; i < runs.length; ++i)
      all.push_back(static_cast<int32_t>(runs.start_of(run) + i));
  return all;
}

using Shards = std::map<std::pair<std::string, int>, std::vector<int32_t>>;  // by value, device

std::string key(const HeldValue& value) { return value.kind + value.name; }

Shards shards_of(const Program& program) {
  Shards shards;
  for (const HeldValue& value : held_values(program))
    for (const HoldingStage& stage : value.stages)
      for (size_t d = 0; d < stage.layout.box_of.size(); ++d)
        if (stage.layout.box_of[d] != kNoBox)
          shards[{key(value), program.stages[at(stage.stage)].devices[d]}] =
              places(stage.layout, stage.layout.boxes[at(stage.layout.box_of[d])]);
  return shards;
}

std::vector<char> bytes_in(const std::vector<int32_t>& elements, const Runs& runs) {
  std::vector<char> bytes;
  for (int64_t run = 0; run < runs.count(); ++run) {
    const char* start = reinterpret_cast<const char*>(elements.data()) + runs.start_of(run);
    bytes.insert(bytes.end(), start, start + runs.length);
  }
  return bytes;
}

// Returns the replicas by home.
std::map<int, std::vector<int32_t>> keep(const StateReplicas& replicas, const Shards& shards) {
  std::map<int, std::vector<int32_t>> kept;
  for (size_t h = 0; h < replicas.replicas.size(); ++h) {
    const StateReplica& replica = replicas.replicas[h];
    const auto& from = shards.at({key(replicas.values[at(replica.value)]), replica.from});
    const std::vector<char> bytes = bytes_in(from, replica.in_from);
    std::vector<int32_t>& elements = kept[static_cast<int>(h)];
    elements.resize(bytes.size() / 4);
    std::memcpy(elements.data(), bytes.data(), bytes.size());
  }
  return kept;
}

void carry_out(const ReshardPlan& moves,
               const Shards& before,
               Shards& after,
               const std::map<int, std::vector<int32_t>>& kept = {}) {
  for (const ReshardMove& move : moves.moves) {
    const HeldValue& value = moves.values[at(move.value)];
    ASSERT_EQ(bytes_per_element(value.dtype), 4);
    ASSERT_EQ(move.in_from.total(), move.in_to.total());
    const std::vector<int32_t>& from =
        move.replica < 0 ? before.at({key(value), move.from}) : kept.at(move.replica);
    std::vector<int32_t>& to = after.at({key(value), move.to});
    const std::vector<char> bytes = bytes_in(from, move.in_from);
    for (int64_t run = 0; run < move.in_to.count(); ++run)
      std::memcpy(reinterpret_cast<char*>(to.data()) + move.in_to.start_of(run),
                  bytes.data() + run * move.in_to.length,
                  at(move.in_to.length));
  }
}

// Returns the elements of a value that some device still has.
std::map<std::string, std::set<int32_t>> kept(const Shards& shards, int lost) {
  std::map<std::string, std::set<int32_t>> all;
  for (const auto& [where, elements] : shards)
    if (where.second != lost) all[where.first].insert(elements.begin(), elements.end());
  return all;
}

Plan draw(const Graph& graph, const std::vector<std::string>& names, uint64_t seed) {
  switch (seed % 3) {
    case 0:
      return random_plan(graph, names, 12, seed);
    case 1:
      return random_pipeline(graph, names, 12, seed);
    default:
      return random_pipelines(graph, names, 12, seed);
  }
}

// Returns rows divided equally among all devices.
Plan rows_of_all(const Cluster& cluster) {
  const std::vector<std::string> names = names_without(cluster, -1);
  const auto num = static_cast<int64_t>(names.size());
  Plan plan;
  plan.global_batch = 2 * num;
  plan.pipelines = {{{}, {{2 * num, std::vector<int64_t>(names.size(), 2)}}, {{}}}};
  plan.pipelines[0].stages[0].mesh = {{"x"}, {num}, names};
  return plan;
}

Plan in_shards(Plan plan) {
  plan.pipelines[0].stages[0].placements["*"] = "S(0, even)";
  return plan;
}

// Each of some random plans loses a device and is replaced by another one. All other elements
// arrive, and the lost ones are those that only that device had.
TEST(ReshardPlan, AllSurvivingStateArrivesAfterTheLossOfAnyDevice) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  const uint64_t seeds = seeds_of(1000);
  uint64_t recovered = 0, lacking = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    const int lost = static_cast<int>(seed % 6);
    const Program before = lower(analysis, draw(graph, names_without(cluster, -1), seed), cluster);
    const Program after =
        lower(analysis, draw(graph, names_without(cluster, lost), seed + 7), cluster);
    const ReshardPlan moves = plan_reshard({{&before, numbers_without(cluster, lost)}}, after);
    const Shards had = shards_of(before), wanted = shards_of(after);
    Shards got = wanted;
    for (auto& [where, elements] : got) std::ranges::fill(elements, -1);
    carry_out(moves, had, got);
    const auto left = kept(had, lost);
    bool any_lost = false;
    for (const auto& [where, elements] : wanted)
      for (size_t i = 0; i < elements.size(); ++i) {
        const auto found = left.find(where.first);
        const bool is_left = found != left.end() && found->second.contains(elements[i]);
        ASSERT_EQ(got.at(where)[i], is_left ? elements[i] : -1) << where.first << where.second;
        any_lost |= !is_left;
      }
    EXPECT_EQ(any_lost, !moves.lost.empty());
    ++(any_lost ? lacking : recovered);
  }
  EXPECT_GT(recovered, seeds / 10);
  EXPECT_GT(lacking, seeds / 10);
}

// Returns the number of random plans: 1,000 nightly.
uint64_t replicas_seeds() { return seeds_of("MEDLEY_REPLICAS_SEEDS", 100); }

// Each of some random plans on three nodes of two devices loses a node and is replaced by another
// one. With replicas no element is lost; without them some are.
TEST(StateReplicas, AnySingleNodeMayBeLost) {
  const Cluster cluster = six_devices(2);
  const Graph graph = read_graph("tests/data/mlp.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  const std::vector<std::string> names = names_without(cluster, -1);
  uint64_t in_need = 0;
  for (uint64_t seed = 0; seed < replicas_seeds(); ++seed) {
    SCOPED_TRACE(seed);
    const int node = static_cast<int>(seed % 3);
    std::vector<int> left;
    std::vector<std::string> left_names;
    for (int d = 0; d < 6; ++d)
      if (d / 2 != node) {
        left.push_back(d);
        left_names.push_back(names[at(d)]);
      }
    const Program before = lower(analysis, draw(graph, names, seed), cluster);
    const Program after = lower(analysis, draw(graph, left_names, seed + 7), cluster);
    const StateReplicas replicas = state_replicas(before, neighbourhood_of(before, cluster));
    EXPECT_EQ(replicas.without, 0);
    for (const StateReplica& replica : replicas.replicas)
      EXPECT_NE(replica.from / 2, replica.to / 2);
    const ReshardPlan moves = plan_reshard({{&before, left, &replicas}}, after);
    ASSERT_THAT(moves.lost, IsEmpty());
    in_need += !plan_reshard({{&before, left}}, after).lost.empty();
    const Shards had = shards_of(before), wanted = shards_of(after);
    Shards got = wanted;
    for (auto& [where, elements] : got) std::ranges::fill(elements, -1);
    carry_out(moves, had, got, keep(replicas, had));
    EXPECT_EQ(got, wanted);
  }
  EXPECT_GT(in_need, replicas_seeds() / 10);
}

// Each of six devices has an unreplicated sixth of everything.
TEST(StateReplicas, DeviceWithLittleMemoryKeepsLittle) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const Program program = lower(graph, in_shards(rows_of_all(cluster)), cluster, {});
  Neighbourhood places = neighbourhood_of(program, cluster);
  const auto kept_by = [&] {
    std::map<int, int64_t> kept;
    for (const StateReplica& replica : state_replicas(program, places).replicas)
      kept[replica.to] += replica.bytes();
    return kept;
  };
  const std::map<int, int64_t> identical = kept_by();
  ASSERT_EQ(identical.size(), 6u);
  places.room[1] = 0;
  places.room[2] = identical.at(2);
  const std::map<int, int64_t> unlike = kept_by();
  EXPECT_FALSE(unlike.contains(1));
  EXPECT_LT(unlike.at(2), identical.at(2));
  EXPECT_EQ(state_replicas(program, places).without, 0);
  places.room.assign(6, 0);
  EXPECT_GT(state_replicas(program, places).without, 0);
}

// A revocable pool is one failure domain. Its nodes are used if no other device has room.
TEST(StateReplicas, AreOutsideOfAPoolThatMayBeTakenAway) {
  Cluster cluster;
  cluster.pools = {{"kept", 1, 1, {}, false, 0}, {"spot", 3, 1, {}, true, 0}};
  for (NodePool& pool : cluster.pools) pool.kind.memory_bytes = 1 << 30;
  cluster.networks = {{"lan", false, {"kept", "spot"}, 1e9, 1e-5, {}}};
  cluster.devices = list_devices(cluster.pools);
  const Graph graph = read_graph("tests/data/mlp.graph");
  const Program program = lower(graph, in_shards(rows_of_all(cluster)), cluster, {});
  Neighbourhood places = neighbourhood_of(program, cluster);
  for (const StateReplica& replica : state_replicas(program, places).replicas)
    EXPECT_EQ(replica.to == 0, replica.from != 0);
  places.room[0] = 0;
  const StateReplicas among_them = state_replicas(program, places);
  EXPECT_EQ(among_them.without, 0);
  EXPECT_THAT(among_them.replicas, Not(IsEmpty()));
}

TEST(ReshardPlan, EqualPlansMoveNothing) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const Program program = lower(graph, draw(graph, names_without(cluster, -1), 5), cluster, {});
  const ReshardPlan moves = plan_reshard({{&program, numbers_without(cluster, -1)}}, program);
  EXPECT_THAT(moves.lost, IsEmpty());
  for (const ReshardMove& move : moves.moves) EXPECT_EQ(move.from, move.to);
}

// A new device has no state; of the five with all of it, each gives about as much.
TEST(ReshardPlan, SendingIsDividedAmongEqualHolders) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("python/tests/golden/gpt.graph");
  const Program program = lower(graph, rows_of_all(cluster), cluster, {});
  const ReshardPlan moves = plan_reshard({{&program, numbers_without(cluster, 5)}}, program);
  EXPECT_THAT(moves.lost, IsEmpty());
  std::map<int, int64_t> given;
  int64_t all = 0, largest = 0;
  for (const ReshardMove& move : moves.moves) {
    if (move.to != 5) continue;
    EXPECT_NE(move.from, 5);
    given[move.from] += move.bytes();
    all += move.bytes();
    largest = std::max(largest, move.bytes());
  }
  for (const auto& [device, bytes] : given) EXPECT_LE(bytes, all / 5 + largest) << device;
}

// The devices that computed in f16 are gone, or the first of them has joined. A run that was scaled
// before resumes with its scale.
TEST(ReshardPlan, MissingLossScaleIsNoLoss) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const Plan rows = rows_of_all(cluster);
  Optimizer optimizer;
  const Program without = lower(analyse(graph, optimizer), rows, cluster);
  optimizer.scales_loss = true;
  const Program with = lower(analyse(graph, optimizer), rows, cluster);
  const auto scales = [](const ReshardPlan& moves) {
    return std::ranges::count_if(moves.moves, [&](const ReshardMove& move) {
      const HeldValue& value = moves.values[at(move.value)];
      return is_loss_scale(value.kind, value.name);
    });
  };
  for (const auto& [before, after, moved] :
       {std::tuple(&without, &with, 0), {&with, &with, 6}, {&with, &without, 0}}) {
    const ReshardPlan moves = plan_reshard({{before, numbers_without(cluster, 5)}}, *after);
    EXPECT_THAT(moves.lost, IsEmpty());
    EXPECT_EQ(scales(moves), moved);
  }
}

TEST(ReshardPlan, AParameterThatIsCalledLikeTheScaleIsLostLikeAnyOther) {
  const Cluster cluster = six_devices();
  std::string text = LocalFiles().read("tests/data/mlp.graph");
  const std::string name = "fc1.weight";
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
    text.replace(at, name.size(), kLossScaleState);
  const Graph graph = run_passes(parse_graph(text, "mlp.graph"));
  const Program program = lower(graph, in_shards(rows_of_all(cluster)), cluster, {});
  const ReshardPlan moves = plan_reshard({{&program, numbers_without(cluster, 5)}}, program);
  EXPECT_THAT(moves.lost, Contains(StartsWith("parameter \"loss_scale\": ")));
}

// Two generations may have ended in the same failure: one device has the state of the newer plan,
// the others that of the older one.
TEST(ReshardPlan, HoldersOfSeveralPlansAreTakenTogether) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  const Plan rows = rows_of_all(cluster);
  const Program replicated = lower(analysis, rows, cluster);
  const Program cut = lower(analysis, in_shards(rows), cluster);
  const ReshardPlan moves = plan_reshard({{&cut, {1, 2}}, {&replicated, {4}}}, cut);
  EXPECT_THAT(moves.lost, IsEmpty());
  for (const ReshardMove& move : moves.moves)
    EXPECT_EQ(move.from == move.to, move.to == 1 || move.to == 2 || move.to == 4)
        << move.from << " gives " << move.to;
}

}  // namespace
}  // namespace medley
