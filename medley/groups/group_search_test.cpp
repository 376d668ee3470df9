#include "medley/groups/group_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "medley/base/at.h"
#include "medley/testing/random_groups.h"

namespace medley {
namespace {

// Returns all whole numbers of devices.
std::vector<Units> all_amounts(const Units& devices) {
  std::vector<Units> amounts{{}};
  for (const int most : devices) {
    std::vector<Units> longer;
    for (const Units& amount : amounts)
      for (int some = 0; some <= most; ++some) {
        longer.push_back(amount);
        longer.back().push_back(some);
      }
    amounts = std::move(longer);
  }
  amounts.erase(amounts.begin());  // the empty amount
  return amounts;
}

// Returns the search of autohet.cpp for at least `pipelines` pipelines.
std::unique_ptr<GroupSearch> searched(const GroupInstance& instance, size_t pipelines) {
  GroupRequest request;
  request.layers = instance.request.layers;
  request.pools = instance.request.pools;
  request.sums = instance.sums;
  request.amounts = all_amounts(instance.devices);
  request.speeds.assign(instance.devices.size(), 1.0);
  request.least = Nanoseconds{1};
  request.rows = instance.rows;
  request.pipelines = pipelines;
  auto search = std::make_unique<GroupSearch>(std::move(request));
  for (size_t c = 0; c < instance.choices.size(); ++c)
    search->add(instance.choices[c], instance.rows_of_microbatch[c], true);
  search->search_at_prices();
  search->improve();
  return search;
}

// Enumerates all partitions of the devices, all chains and all divisions of rows. One pipeline, and
// several, which sum gradients, are searched separately.
TEST(GroupSearch, FindsTheStepOfAllGroups) {
  uint64_t possible = 0, several_possible = 0;
  // Counts the cases in which there are pipelines.
  const auto expect = [&](uint64_t seed,
                          std::optional<Nanoseconds> found,
                          Nanoseconds bound,
                          std::optional<int64_t> best,
                          uint64_t& count) {
    ASSERT_EQ(found.has_value(), best.has_value()) << seed;
    if (!best) return;
    ++count;
    EXPECT_EQ(found->value, *best) << seed;
    EXPECT_LT(bound.value, *best) << seed;
  };
  std::vector<uint64_t> seeds(group_seeds());
  std::iota(seeds.begin(), seeds.end(), uint64_t{0});
  if (group_seeds() <= 182) seeds.push_back(182);  // it has fewer rows than devices
  if (group_seeds() <= 661) seeds.push_back(661);  // the best are more than two
  for (const uint64_t seed : seeds) {
    const GroupInstance instance = random_groups(seed, true);
    const AllGroups all(instance);
    const auto several = searched(instance, 2);
    std::optional<Nanoseconds> found = several->step();
    ASSERT_NO_FATAL_FAILURE(expect(seed, found, several->bound(), all.best(2), several_possible));
    const auto any = searched(instance, 1);
    if (const auto step = any->step()) found = std::min(found.value_or(*step), *step);
    ASSERT_NO_FATAL_FAILURE(expect(seed, found, any->bound(), all.best(1), possible));
  }
  EXPECT_GT(possible, group_seeds() * 2 / 3);
  EXPECT_GT(several_possible, group_seeds() / 3);
}

// Returns the search with one number of one-row micro-batches, for these times of stages.
std::unique_ptr<GroupSearch> searched(GroupRequest request,
                                      const std::function<int64_t(const StageRange&)>& time) {
  request.layers = static_cast<int>(request.sums.gradients.size());
  request.speeds.assign(request.pools.size(), 1.0);
  request.least = Nanoseconds{1};
  MicrobatchChoice choice;
  choice.count = static_cast<int>(request.rows);
  choice.cuts.assign(at(request.layers - 1), CutBytes{});
  choice.options = [time](const StageRange& range) {
    const int64_t all = time(range);
    return std::vector<StageOption>{{{all / 3}, {all - all / 3}, {}, {}, {}, {}}};
  };
  auto search = std::make_unique<GroupSearch>(std::move(request));
  search->add(choice, 1, true);
  return search;
}

// Three pools with slow links between them. Pipelines within a pool, and many others, do more rows,
// but sum all gradients over these links. Chains through all pools, one layer each, sum within
// pools.
TEST(GroupSearch, IdenticalPipelinesSumWithinPools) {
  GroupRequest request;
  const LinkCurve fast{{{Bytes{100}, Nanoseconds{10}}}, {}},
      slow{{{Bytes{1}, Nanoseconds{100}}}, {}};
  for (int pool = 0; pool < 3; ++pool) {
    request.pools.push_back(
        {std::string(1, static_cast<char>('a' + pool)), 4, {1, 2, 4}, Bytes{1000}});
    auto& links = request.sums.links.emplace_back(3, slow);
    links[at(pool)] = fast;
  }
  request.sums.devices = {4, 4, 4};
  request.sums.per_node = {1, 1, 1};
  request.sums.gradients.assign(3, Bytes{100});
  request.amounts = all_amounts({4, 4, 4});
  request.rows = 64;
  request.faster_than = Nanoseconds{20'000};
  const auto search = searched(std::move(request), [](const StageRange& range) {
    return (240 * (range.end - range.begin) + 240) / range.devices;
  });
  const std::vector<Division> found = search->divisions(8);
  ASSERT_FALSE(found.empty());
  const std::vector<int>& best = found[0].columns;
  EXPECT_GT(best.size(), 1U);
  EXPECT_EQ(best, std::vector<int>(best.size(), best[0]));
  for (const PipelineStage& stage : search->chain(best[0]).plan.stages)
    EXPECT_EQ(stage.range.end - stage.range.begin, 1);
  EXPECT_LT(found[0].step.value, 2 * search->step()->value);
}

// More devices are no faster, so a stage should have one, even if chains of larger amounts use
// whole nodes. It should have two if one lacks memory for the sums of four pipelines.
TEST(GroupSearch, StagesOfIdenticalPipelinesAreSmallerThanNodes) {
  for (const bool is_tight : {false, true}) {
    GroupRequest request;
    const LinkCurve link{{{Bytes{100}, Nanoseconds{10}}}, {}};
    request.pools = {{"a", 160, {1, 2, 4, 8, 16, 32, 64, 128}, Bytes{1000}}};
    request.sums.links = {{link}};
    request.sums.devices = {160};
    request.sums.per_node = {8};
    request.sums.gradients.assign(8, Bytes{is_tight ? 501 : 100});
    request.amounts = {{40}, {80}, {120}};
    request.rows = 256;
    request.faster_than = Nanoseconds{1'000'000};
    const auto search = searched(std::move(request), [](const StageRange& range) {
      return int64_t{240} * (range.end - range.begin);
    });
    const std::vector<Division> found = search->divisions(8);
    ASSERT_FALSE(found.empty());
    ASSERT_EQ(found[0].columns.size(), 4U);
    for (const int column : found[0].columns)
      for (const PipelineStage& stage : search->chain(column).plan.stages)
        EXPECT_EQ(stage.range.devices, is_tight ? 2 : 1);
  }
}

}  // namespace
}  // namespace medley
