// Moves, carried out on numbers: every element of every value says where in the whole value it is.

#include "medley/elastic/moves.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/files.h"
#include "medley/boxes/cells.h"
#include "medley/graph/dtype.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/program/lower.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

using ::testing::IsEmpty;

Cluster six_devices() {
  Cluster cluster;
  cluster.pools = {{"a", 6, 1, {}, false, 0}};
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

// The places of a box's elements in the whole value: what a device's shard holds.
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

void carry_out(const Moves& moves, const Shards& before, Shards& after) {
  for (const Move& move : moves.moves) {
    const HeldValue& value = moves.values[at(move.value)];
    ASSERT_EQ(bytes_per_element(value.dtype), 4);
    ASSERT_EQ(move.in_from.total(), move.in_to.total());
    const std::vector<int32_t>& from = before.at({key(value), move.from});
    std::vector<int32_t>& to = after.at({key(value), move.to});
    std::vector<char> bytes;
    for (int64_t run = 0; run < move.in_from.count(); ++run) {
      const char* start = reinterpret_cast<const char*>(from.data()) + move.in_from.start_of(run);
      bytes.insert(bytes.end(), start, start + move.in_from.length);
    }
    for (int64_t run = 0; run < move.in_to.count(); ++run)
      std::memcpy(reinterpret_cast<char*>(to.data()) + move.in_to.start_of(run),
                  bytes.data() + run * move.in_to.length,
                  at(move.in_to.length));
  }
}

// Elements of a value that somebody still has.
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

// 1,000 random plans, each of which loses a device and goes over to another random plan: whatever
// is not lost arrives, and what is lost is what only that device had.
TEST(Moves, AfterTheLossOfAnyDeviceEverythingThatSomebodyHasArrives) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  int64_t recovered = 0, lacking = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    const int lost = static_cast<int>(seed % 6);
    const Program before = lower(analysis, draw(graph, names_without(cluster, -1), seed), cluster);
    const Program after =
        lower(analysis, draw(graph, names_without(cluster, lost), seed + 7), cluster);
    const Moves moves = moves_between({{&before, numbers_without(cluster, lost)}}, after);
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
  EXPECT_GT(recovered, 100);
  EXPECT_GT(lacking, 100);
}

TEST(Moves, NothingTravelsWherePlansAreTheSame) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const Program program = lower(graph, draw(graph, names_without(cluster, -1), 5), cluster, {});
  const Moves moves = moves_between({{&program, numbers_without(cluster, -1)}}, program);
  EXPECT_THAT(moves.lost, IsEmpty());
  for (const Move& move : moves.moves) EXPECT_EQ(move.from, move.to);
}

// A device that comes new has nothing; of the five that have all, none gives much more than the
// others.
TEST(Moves, GivingIsDividedAmongThoseWhoHaveTheSame) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("python/tests/golden/gpt.graph");
  Plan plan;
  plan.global_batch = 12;
  plan.pipelines = {{{{12, {2, 2, 2, 2, 2, 2}}}, "1f1b", {{}}, {}}};
  plan.pipelines[0].stages[0].mesh = {{"x"}, {6}, names_without(cluster, -1)};
  const Program program = lower(graph, plan, cluster, {});
  const Moves moves = moves_between({{&program, numbers_without(cluster, 5)}}, program);
  EXPECT_THAT(moves.lost, IsEmpty());
  std::map<int, int64_t> given;
  int64_t all = 0, largest = 0;
  for (const Move& move : moves.moves) {
    if (move.to != 5) continue;
    EXPECT_NE(move.from, 5);
    given[move.from] += move.bytes();
    all += move.bytes();
    largest = std::max(largest, move.bytes());
  }
  for (const auto& [device, bytes] : given) EXPECT_LE(bytes, all / 5 + largest) << device;
}

// Two epochs may have ended in the same failure: one device has what the newer plan gave it, the
// others what the older one did.
TEST(Moves, HoldersOfSeveralPlansAreTakenTogether) {
  const Cluster cluster = six_devices();
  const Graph graph = read_graph("tests/data/mlp.graph");
  const GraphAnalysis analysis = analyse(graph, {});
  Plan rows;
  rows.global_batch = 12;
  rows.pipelines = {{{{12, {2, 2, 2, 2, 2, 2}}}, "1f1b", {{}}, {}}};
  rows.pipelines[0].stages[0].mesh = {{"x"}, {6}, names_without(cluster, -1)};
  Plan shards = rows;
  shards.pipelines[0].stages[0].states["*"] = "S(0, even)";
  const Program replicated = lower(analysis, rows, cluster), cut = lower(analysis, shards, cluster);
  const Moves moves = moves_between({{&cut, {1, 2}}, {&replicated, {4}}}, cut);
  EXPECT_THAT(moves.lost, IsEmpty());
  for (const Move& move : moves.moves)
    EXPECT_EQ(move.from == move.to, move.to == 1 || move.to == 2 || move.to == 4)
        << move.from << " gives " << move.to;
}

}  // namespace
}  // namespace medley
