#include "medley/boxes/gradient_sync.h"

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr int kSyncSeeds = 1000;

using Random = std::mt19937;
int64_t pick_length(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Returns replicas and shards, including zero lengths, on one axis or two.
Layout random_layout(Random& random, const FactorSizes& factors) {
  std::vector<int64_t> mesh{pick_length(random, 1, 4)};
  if (pick_length(random, 0, 1)) mesh.push_back(pick_length(random, 1, 3));
  Placement placement(mesh.size());
  std::vector<CutPoints> points(mesh.size());
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    const auto position = static_cast<int>(pick_length(random, 0, std::ssize(factors) - 1));
    if (pick_length(random, 0, 2) == 0 || (axis == 1 && placement[0].cuts(position))) continue;
    placement[axis] = sharded(position, 0);
    std::vector<int64_t> cut{0, factors[at(position)]};
    while (std::ssize(cut) <= mesh[axis])
      cut.push_back(pick_length(random, 0, factors[at(position)]));
    std::ranges::sort(cut);
    points[axis] = {cut};
  }
  return layout_of(factors, placement, mesh, points);
}

std::vector<int64_t> places_of(const Runs& runs) {
  std::vector<int64_t> places;
  for (int64_t run = 0; run < runs.count(); ++run)
    for (int64_t i = 0; i < runs.length; ++i) places.push_back(runs.start_of(run) + i);
  return places;
}

struct Example {
  std::vector<SyncHolder> holders;
  GradientSync sync;
};

Example random_example(Random& random) {
  const FactorSizes factors{
      pick_length(random, 1, 4), pick_length(random, 1, 4), pick_length(random, 1, 4)};
  Example example;
  int members = 0;
  const int64_t count = pick_length(random, 2, 4);
  for (int64_t h = 0; h < count; ++h) {
    SyncHolder holder{random_layout(random, factors), members, true, true, "holder"};
    if (h > 0) holder.gives = pick_length(random, 0, 3) > 0;
    if (h > 0) holder.takes = pick_length(random, 0, 3) > 0;
    members += static_cast<int>(holder.layout.box_of.size());
    example.holders.push_back(std::move(holder));
  }
  example.sync.members.resize(at(members));
  for (const SyncHolder& holder : example.holders)
    for (size_t d = 0; d < holder.layout.box_of.size(); ++d) {
      SyncMember& member = example.sync.members[at(holder.first_member) + d];
      if (holder.gives) member.inputs = {0};
      if (holder.takes) member.outputs = {0};
    }
  example.sync.tensors = {std::make_shared<const SyncTensor>(sync_tensor(example.holders))};
  return example;
}

// Returns a member's elements of the tensor, in its own order.
std::vector<int64_t> elements_of(const Layout& layout, size_t device) {
  if (layout.box_of[device] == kNoBox) return {};
  return places_of(runs_of(layout.factors, layout.boxes[at(layout.box_of[device])]));
}

// Holder h has element e as 1000 h + e, so a sum shows its terms.
TEST(GradientSync, GivesEverybodyTheSums) {
  for (int seed = 0; seed < kSyncSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<unsigned>(seed));
    const auto [holders, sync] = random_example(random);
    EXPECT_NO_THROW(verify(sync, "gradient_sync"));
    std::vector<std::vector<int64_t>> inputs(sync.members.size()), outputs(sync.members.size());
    int64_t givers = 0, all = 0;
    for (size_t h = 0; h < holders.size(); ++h) {
      if (holders[h].gives) ++givers;
      if (holders[h].gives) all += 1000 * static_cast<int64_t>(h);
      for (size_t d = 0; d < holders[h].layout.box_of.size(); ++d)
        for (int64_t element : elements_of(holders[h].layout, d))
          inputs[at(holders[h].first_member) + d].push_back(1000 * static_cast<int64_t>(h) +
                                                            element);
    }
    for (size_t m = 0; m < outputs.size(); ++m)
      outputs[m].resize(at(taken(*sync.tensors[0], static_cast<int>(m))));
    for (const SyncCell& cell : *sync.tensors[0]) {
      std::vector<int64_t> sums(at(cell.length));
      for (const SyncEnd& end : cell.from)
        for (size_t i = 0; const int64_t place : places_of(end.runs))
          sums[i++] += inputs[at(end.member)].at(at(place));
      for (const SyncEnd& end : cell.to)
        for (size_t i = 0; const int64_t place : places_of(end.runs))
          outputs[at(end.member)].at(at(place)) = sums[i++];
    }
    for (const SyncHolder& holder : holders)
      for (size_t d = 0; d < holder.layout.box_of.size(); ++d) {
        std::vector<int64_t> wanted;
        for (int64_t element : elements_of(holder.layout, d))
          if (holder.takes) wanted.push_back(all + givers * element);
        ASSERT_EQ(outputs[at(holder.first_member) + d], wanted);
      }
  }
}

// Two holders give all of it. Each then takes its owned share, and gives that to both.
TEST(GradientSync, SumsWhereTheOwnersAre) {
  const FactorSizes factors{6};
  const Layout all = layout_of(factors, {replicated()}, {1}, {{}});
  const Layout first{factors, {{{0, 4}}}, {0}, {}}, last{factors, {{{4, 6}}}, {0}, {}};
  const std::vector<SyncHolder> to_owners{{all, 0, true, false, "a"},
                                          {first, 0, false, true, "a", false},
                                          {all, 1, true, false, "b"},
                                          {last, 1, false, true, "b", false}};
  EXPECT_EQ(sync_tensor(to_owners),
            (SyncTensor{{4, {{0, {0, 4, {}, {}}}, {1, {0, 4, {}, {}}}}, {{0, {0, 4, {}, {}}}}},
                        {2, {{0, {4, 2, {}, {}}}, {1, {4, 2, {}, {}}}}, {{1, {0, 2, {}, {}}}}}}));
  std::vector<SyncHolder> to_all = to_owners;
  for (SyncHolder& holder : to_all) std::swap(holder.gives, holder.takes);
  EXPECT_EQ(sync_tensor(to_all),
            (SyncTensor{{4, {{0, {0, 4, {}, {}}}}, {{0, {0, 4, {}, {}}}, {1, {0, 4, {}, {}}}}},
                        {2, {{1, {0, 2, {}, {}}}}, {{0, {4, 2, {}, {}}}, {1, {4, 2, {}, {}}}}}}));
}

int64_t total(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// Every term of every element is sent to the one place that sums it, and the sum from there to all
// takers. A cell's only giver sends it and receives none of it.
TEST(GradientSync, SendsEachElementOnce) {
  for (int seed = 0; seed < kSyncSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Random random(static_cast<unsigned>(seed));
    const GradientSync sync = random_example(random).sync;
    int64_t terms = 0, sums = 0;
    for (const SyncCell& cell : *sync.tensors[0]) {
      const auto takers = std::ssize(cell.to);
      const bool is_kept =
          cell.from.size() == 1 && std::ranges::any_of(cell.to, [&](const SyncEnd& end) {
            return end.member == cell.from[0].member;
          });
      std::map<int, int64_t> next;  // [taking member] its pieces follow each other
      int64_t own_terms = 0;
      for (size_t place = 0; place < cell.to.size(); ++place) {
        const IndexInterval piece = piece_of(cell, place);
        for (const SyncEnd& end : cell.to) {
          if (!goes_to(cell, place, end.member)) continue;
          ASSERT_EQ(piece.begin, std::exchange(next[end.member], piece.end));
        }
        for (const SyncEnd& end : cell.from)
          if (end.member == cell.to[place].member) own_terms += piece.size();
      }
      for (const SyncEnd& end : cell.to) ASSERT_EQ(next[end.member], cell.length);
      if (is_kept) {
        terms += takers > 1 ? cell.length : 0;
        sums += takers > 1 ? cell.length * (takers - 2) : 0;
      } else {
        terms += cell.length * std::ssize(cell.from) - own_terms;
        sums += cell.length * (takers - 1);
      }
    }
    const SyncTraffic traffic = traffic_of(sync);
    EXPECT_EQ(total(traffic.first), terms);
    EXPECT_EQ(total(traffic.second), sums);
  }
}

// n pipelines have 12 rows, and update uneven shares of them. Gradients to the owners and new
// values from them are n - 1 times the rows each: together an all-reduce. An owner sends as much of
// its share as if all others received it from one another.
TEST(GradientSync, OwnersSendAsManyBytesAsAnAllReduce) {
  const Layout all = layout_of({12}, {replicated()}, {1}, {{}});
  for (const std::vector<int64_t>& ends :
       std::vector<std::vector<int64_t>>{{12}, {9, 12}, {12, 12}, {5, 9, 12}, {0, 12, 12, 12}}) {
    std::vector<SyncHolder> gradients, values;
    GradientSync sync{std::vector<SyncMember>(ends.size(), {{0}, {0}}), {}};
    for (size_t p = 0; p < ends.size(); ++p) {
      const int64_t begin = p == 0 ? 0 : ends[p - 1];
      const Layout share{{12}, {{{begin, ends[p]}}}, {begin < ends[p] ? 0 : kNoBox}, {}};
      const SyncHolder whole{all, static_cast<int>(p), true, false, "all"};
      const SyncHolder own{share, static_cast<int>(p), false, true, "own", false};
      gradients.insert(gradients.end(), {whole, own});
      values.insert(values.end(), {whole, own});
      for (size_t i = values.size() - 2; i < values.size(); ++i)
        std::swap(values[i].gives, values[i].takes);
    }
    const auto others = std::ssize(ends) - 1;
    sync.tensors = {std::make_shared<const SyncTensor>(sync_tensor(gradients))};
    SyncTraffic traffic = traffic_of(sync);
    EXPECT_EQ(total(traffic.first) + total(traffic.second), 12 * others);
    sync.tensors = {std::make_shared<const SyncTensor>(sync_tensor(values))};
    traffic = traffic_of(sync);
    EXPECT_EQ(total(traffic.first), others > 0 ? 12 : 0);
    EXPECT_EQ(total(traffic.first) + total(traffic.second), 12 * others);
  }
}

GradientSync thirds_and_halves() {
  const auto rows = [](int64_t devices) {
    std::vector<int64_t> points;
    for (int64_t i = 0; i <= devices; ++i) points.push_back(12 / devices * i);
    return layout_of({12}, {sharded(0, 0)}, {devices}, {{points}});
  };
  GradientSync sync{std::vector<SyncMember>(5, {{0}, {0}}), {}};
  sync.tensors = {std::make_shared<const SyncTensor>(sync_tensor({{rows(2), 0}, {rows(3), 2}}))};
  return sync;
}

// As drawn in the header.
TEST(GradientSync, HasOneCellForEachPairThatMeets) {
  std::vector<std::vector<int64_t>> found;
  const GradientSync sync = thirds_and_halves();
  for (const SyncCell& cell : *sync.tensors[0])
    found.push_back({cell.length, cell.from[0].member, cell.from[1].member});
  EXPECT_EQ(found, (std::vector<std::vector<int64_t>>{{4, 0, 2}, {2, 0, 3}, {2, 1, 3}, {4, 1, 4}}));
}

std::string refusal(const std::function<void(GradientSync&, SyncTensor&)>& change) {
  GradientSync sync = thirds_and_halves();
  SyncTensor tensor = *sync.tensors[0];
  change(sync, tensor);
  sync.tensors[0] = std::make_shared<const SyncTensor>(std::move(tensor));
  try {
    verify(sync, "here");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(GradientSync, IsRefusedWithThePlace) {
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor&) {}), "accepted");
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor& t) { t.erase(t.begin() + 1); }),
            "here: tensor 0: from: found element 0 of member 3 in no cell, expected each once");
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor& t) { t[1].from[0].runs.start = 3; }),
            "here: tensor 0: from: found element 3 of member 0 twice, expected each once");
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor& t) { std::swap(t[0].to[0], t[0].to[1]); }),
            "here: tensor 0: cell 0: to: found member 0 after 2, expected rising ones below 5");
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor& t) { t[2].from.clear(); }),
            "here: tensor 0: cell 2: from: found nobody, expected a member at least");
  EXPECT_EQ(refusal([](GradientSync&, SyncTensor& t) { t[2].length = 3; }),
            "here: tensor 0: cell 2: from: found 2 elements of member 1, expected 3");
  EXPECT_EQ(refusal([](GradientSync& r, SyncTensor&) { r.members[4].outputs.clear(); }),
            "here: found member 4 in a cell of tensor 0, which it does not get out");
}

}  // namespace
}  // namespace medley
