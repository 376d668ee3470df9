#include "medley/groups/column_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "medley/base/at.h"
#include "medley/testing/random_groups.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

struct Searched {
  std::vector<std::unique_ptr<Chains>> chains;
  std::unique_ptr<ColumnGeneration> columns;
};

// Searches for at least `pipelines` pipelines.
Searched search(const GroupInstance& instance, bool counted, size_t pipelines) {
  Searched searched;
  searched.columns = std::make_unique<ColumnGeneration>(instance.devices, instance.rows, pipelines);
  for (size_t c = 0; c < instance.choices.size(); ++c) {
    PipelineRequest request = instance.request;
    request.microbatches = {instance.choices[c]};
    if (pipelines > 1) {
      request.sums = [&](const StageRange& stage) { return instance.sums.about(stage, pipelines); };
      request.sums_at_least = [&](const StageRange& stage) {
        return instance.sums.at_least(stage);
      };
    }
    request.use = counted ? DeviceUse::kCounted : DeviceUse::kAny;
    searched.chains.push_back(std::make_unique<Chains>(request));
    searched.columns->add_choice(instance.rows_of_microbatch[c], *searched.chains.back());
  }
  return searched;
}

// Over all instances: the number with a step, the tightness of bounds, and the share of rows found
// in it.
struct Summary {
  uint64_t possible = 0;
  double bounds = 0, rows_found = 0;
};

Summary compare_with_all(bool sums, size_t pipelines, uint64_t seeds) {
  Summary summary;
  uint64_t closer = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const GroupInstance instance = random_groups(seed, sums);
    const std::optional<int64_t> best = AllGroups(instance).best(pipelines);
    for (const bool counted : {false, true}) {
      const Searched searched = search(instance, counted, pipelines);
      const Nanoseconds start{best.value_or(1000)};
      const double rows = searched.columns->generate(start, {});
      const Nanoseconds rough = searched.columns->bound(start, Closeness::kRough, {.closer = 0});
      const Nanoseconds rooms = searched.columns->bound(start, Closeness::kRooms, {.closer = 0});
      const Nanoseconds bound = searched.columns->bound(start, Closeness::kClose, {.closer = 0});
      if (!best) {
        if (counted && pipelines < 2) EXPECT_EQ(rows, 0) << seed;
        continue;
      }
      EXPECT_LT(bound.value, *best) << seed;
      EXPECT_LE(rough, rooms) << seed;
      EXPECT_LE(rooms, bound) << seed;
      closer += rough < rooms;
      if (!counted) continue;
      ++summary.possible;
      summary.rows_found += std::min(1.0, rows / static_cast<double>(instance.rows));
      summary.bounds += static_cast<double>(bound.value + 1) / static_cast<double>(*best);
    }
  }
  EXPECT_GT(closer, seeds / 50);
  summary.bounds /= static_cast<double>(summary.possible);
  summary.rows_found /= static_cast<double>(summary.possible);
  return summary;
}

TEST(ColumnGeneration, NoStepIsShorterThanItsBound) {
  const Summary found = compare_with_all(false, 1, group_seeds());
  EXPECT_GT(found.possible, group_seeds() * 7 / 10);
  EXPECT_GT(found.bounds, 0.8);  // most are close
  EXPECT_GT(found.rows_found, 0.98);
}

// Gradient sums of two or more pipelines take time in every step, and each is a column.
TEST(ColumnGeneration, NoStepOfSeveralPipelinesIsShorterThanItsBound) {
  const Summary found = compare_with_all(true, 2, group_seeds());
  EXPECT_GT(found.possible, group_seeds() / 3);
  EXPECT_GT(found.bounds, 0.7);
}

// The bound equals that of the linear program over all enumerated chains.
TEST(ColumnGeneration, BoundsAreThoseOfAllChains) {
  int looked_at = 0;
  for (const size_t pipelines : {size_t{1}, size_t{2}})
    for (uint64_t seed = 0; seed < (pipelines > 1 ? 50 : 150); ++seed) {
      const GroupInstance instance = random_groups(seed, pipelines > 1);
      const AllGroups all(instance);
      const std::optional<int64_t> best = all.best(pipelines);
      if (!best || all.num_chains() > 2000) continue;
      ++looked_at;
      const Searched searched = search(instance, true, pipelines);
      (void)searched.columns->generate({*best}, {});
      const Nanoseconds bound = searched.columns->bound({*best}, Closeness::kClose, {.closer = 0});
      const auto rows = static_cast<double>(instance.rows);
      EXPECT_LT(all.rows_in_parts(bound.value, pipelines), rows * (1 + 1e-6)) << seed;
      EXPECT_GE(all.rows_in_parts(bound.value + 1, pipelines), rows * (1 - 1e-5)) << seed;
    }
  EXPECT_GT(looked_at, 100);
}

// For one pipeline on free, counted devices, pools in any order match the enumeration of all chains
// and are never worse than each pool once (plan_pipeline).
TEST(Chains, OnePipelineInAnyOrderOfPools) {
  uint64_t shorter = 0;
  const uint64_t seeds = seeds_of(1000);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    const GroupInstance instance = random_groups(seed, false);
    const AllGroups all(instance);
    for (size_t c = 0; c < instance.choices.size(); ++c) {
      PipelineRequest request = instance.request;
      request.microbatches = {instance.choices[c]};
      request.use = DeviceUse::kCounted;
      const Chains chains(request);
      const Chains::Prices nothing(request.pools.size(), 0);
      std::optional<int64_t> best;
      for (int64_t period = chains.longest_period().value; period >= 1;) {
        const std::optional<PricedChain> found =
            chains.at_period({period}, nothing, int64_t{1} << 40);
        if (!found) break;
        const int64_t step = found->plan.predicted.value;
        best = std::min(best.value_or(step), step);
        period = found->plan.period.value - 1;
      }
      EXPECT_EQ(best, all.best_pipeline(c)) << seed;
      request.use = DeviceUse::kOnce;
      const auto in_turn = plan_pipeline(request);
      if (!std::holds_alternative<PipelinePlans>(in_turn)) continue;
      const int64_t once = std::get<PipelinePlans>(in_turn).plans[0].predicted.value;
      ASSERT_TRUE(best) << seed;
      EXPECT_LE(*best, once) << seed;
      shorter += *best < once;
    }
  }
  EXPECT_GT(shorter, seeds / 200);
}

}  // namespace
}  // namespace medley
