#include "medley/chains/pipeline.h"

#include <gmock/gmock.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"
#include "medley/testing/formula.h"

namespace medley {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns layers of 3 ms each on one device of the first pool, `slower` times that on the others,
// without gain from larger meshes.
PipelineRequest plain_request(int layers, std::vector<PipelinePool> pools, int slower = 1) {
  PipelineRequest request;
  request.layers = layers;
  request.links.assign(
      pools.size(),
      std::vector<std::optional<LinkCurve>>(pools.size(), constant_bandwidth({1e9}, {})));
  request.pools = std::move(pools);
  request.microbatches = {{16, std::vector<CutBytes>(at(layers - 1), {{1000}, {1000}}), {}}};
  request.microbatches[0].options = [slower](const StageRange& range) {
    const int64_t length = (range.end - range.begin) * (range.pool > 0 ? slower : 1);
    StageOption option;
    option.forward = {length * 1'000'000};
    option.backward = {length * 2'000'000};
    option.persistent = {(range.end - range.begin) * 10};
    option.saved = {range.end - range.begin};
    return std::vector<StageOption>{option};
  };
  return request;
}

PipelinePlans plans_of(const PipelineRequest& request) {
  return std::get<PipelinePlans>(plan_pipeline(request));
}

std::vector<StageRange> ranges_of(const PipelinePlan& plan) {
  std::vector<StageRange> ranges;
  for (const PipelineStage& stage : plan.stages) ranges.push_back(stage.range);
  return ranges;
}

TEST(PipelinePlanner, GivesTheSlowerPoolFewerLayers) {
  const PipelineRequest request =
      plain_request(9, {{"fast", 1, {1}, {1000}}, {"slow", 1, {1}, {1000}}}, 2);
  const PipelinePlan plan = plans_of(request).plans.front();
  for (const PipelineStage& stage : plan.stages)
    EXPECT_EQ(stage.range.end - stage.range.begin, stage.range.pool == 0 ? 6 : 3);
  EXPECT_EQ(plan.period, Nanoseconds{18'000'000});
}

// Without exposed updates the formula is that of medley/schedule.
TEST(PipelinePlanner, PredictsTheFormula) {
  const PipelineRequest request = plain_request(8, {{"a", 4, {1}, {1000}}});
  const PipelinePlan plan = plans_of(request).plans.front();
  EXPECT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(
      plan.predicted,
      estimate_pipeline(
          PipelineFormula::kOverlapped, schedule_request(plan).times.sizes[0], plan.microbatches));
}

// With a link ten times as slow as all the work, a second pool is useless.
TEST(PipelinePlanner, LeavesDevicesIdleAcrossASlowLink) {
  PipelineRequest request = plain_request(4, {{"a", 1, {1}, {1000}}, {"b", 1, {1}, {1000}}});
  request.links[0][1] = request.links[1][0] = constant_bandwidth({1e4}, {});
  EXPECT_THAT(ranges_of(plans_of(request).plans.front()), ElementsAre(StageRange{0, 4, 0, 1}));
}

// Only the last pool has memory for the last layer's option, so it must be last.
TEST(PipelinePlanner, SearchesTheOrderOfPools) {
  PipelineRequest request =
      plain_request(3, {{"a", 1, {1}, {1000}}, {"b", 1, {1}, {1000}}, {"c", 1, {1}, {1000}}});
  const StageOptions any = request.microbatches[0].options;
  const std::vector<int> pool_of = {1, 2, 0};
  request.microbatches[0].options = [any, pool_of](const StageRange& range) {
    for (int l = range.begin; l < range.end; ++l)
      if (pool_of[at(l)] != range.pool) return std::vector<StageOption>{};
    return any(range);
  };
  EXPECT_THAT(ranges_of(plans_of(request).plans.front()),
              ElementsAre(StageRange{0, 1, 1, 1}, StageRange{1, 2, 2, 1}, StageRange{2, 3, 0, 1}));
}

// Four stages need 4, 3, 2 and 1 in flight. With room for two in the first one, the period exceeds
// a stage. Recomputing, a third slower, is better if available.
TEST(PipelinePlanner, TradesPeriodAndRecomputationForMemory) {
  PipelineRequest request = plain_request(4, {{"a", 4, {1}, {12}}});
  const PipelinePlan slow = plans_of(request).plans.front();
  EXPECT_GT(slow.period, Nanoseconds{3'000'000});
  EXPECT_LE(slow.stages[0].in_flight, 2);

  const StageOptions plain = request.microbatches[0].options;
  request.microbatches[0].options = [plain](const StageRange& range) {
    std::vector<StageOption> options = plain(range);
    options.push_back(options[0]);
    options[1].backward = options[1].backward + options[1].forward;
    options[1].saved = {0};
    options[1].id = 1;
    return options;
  };
  const PipelinePlan recomputing = plans_of(request).plans.front();
  EXPECT_LT(recomputing.predicted, slow.predicted);
  EXPECT_EQ(recomputing.stages[0].option.id, 1);
}

// The update of the last stage ends before the first stage's backward.
TEST(PipelinePlanner, WaitsOnlyForUpdatesThatAreLate) {
  PipelineRequest request = plain_request(4, {{"a", 2, {1}, {1000}}});
  const Nanoseconds without = plans_of(request).plans.front().predicted;
  const StageOptions plain = request.microbatches[0].options;
  const auto with = [&](int first_layer) {
    request.microbatches[0].options = [plain, first_layer](const StageRange& range) {
      std::vector<StageOption> options = plain(range);
      if (range.begin <= first_layer && first_layer < range.end) options[0].update = {1'000'000};
      return options;
    };
    return plans_of(request).plans.front().predicted - without;
  };
  EXPECT_EQ(with(3), Nanoseconds{0});
  EXPECT_EQ(with(0), Nanoseconds{1'000'000});
}

// More micro-batches shrink bubbles until their fixed costs dominate.
TEST(PipelinePlanner, ChoosesTheNumberOfMicrobatches) {
  PipelineRequest request = plain_request(4, {{"a", 2, {1}, {1000}}});
  const MicrobatchChoice choice = request.microbatches[0];
  request.microbatches.clear();
  for (const int count : {2, 8, 64}) {
    MicrobatchChoice& c = request.microbatches.emplace_back(choice);
    c.count = count;
    c.options = [count](const StageRange& range) {
      StageOption option;
      option.forward = {1'000'000 + (range.end - range.begin) * 64'000'000 / count};
      option.backward = option.forward;
      return std::vector<StageOption>{option};
    };
  }
  EXPECT_EQ(plans_of(request).plans.front().microbatches, 8);
}

TEST(PipelinePlanner, SaysWhichStageMissesHowMuch) {
  // Two layers of 11 bytes on each of two devices with 20.
  const auto outcome = plan_pipeline(plain_request(4, {{"a", 2, {1}, {20}}}));
  EXPECT_THAT(std::get<Infeasible>(outcome).reason,
              HasSubstr("on 1 of a needs 22 B on each device, 2 B more than it has, with 1 of "));
  PipelineRequest unlinked = plain_request(2, {{"a", 1, {1}, {11}}, {"b", 1, {1}, {11}}});
  EXPECT_TRUE(std::holds_alternative<PipelinePlans>(plan_pipeline(unlinked)));
  unlinked.links[0][1].reset();
  EXPECT_TRUE(std::holds_alternative<Infeasible>(plan_pipeline(unlinked)));
  unlinked.microbatches[0].options = [](const StageRange&) { return std::vector<StageOption>{}; };
  EXPECT_EQ(std::get<Infeasible>(plan_pipeline(unlinked)).reason,
            "no chain of linked pools can run all layers");
}

TEST(PipelinePlanner, RefusesRequestsThatMakeNoSense) {
  PipelineRequest request = plain_request(2, {{"a", 1, {1}, {100}}});
  request.pools[0].sizes.clear();
  EXPECT_THROW((void)plan_pipeline(request), Error);
  request.pools[0].sizes = {1};
  request.microbatches[0].cuts.clear();
  EXPECT_THROW((void)plan_pipeline(request), Error);
}

// An embedding, four blocks of two layers and a head have 55 ranges. Nine begin with the embedding
// and end in a block, ten end with the head. The others differ in length and start within a block.
TEST(PipelinePlanner, SolvesEqualStagesOnce) {
  PipelineRequest request = plain_request(10, {{"a", 4, {1, 2}, {1000}}});
  const std::vector<int> like{0, 1, 2, 1, 2, 1, 2, 1, 2, 9};
  int asked = 0;
  request.microbatches[0].options = [&](const StageRange& range) {
    ++asked;
    StageOption option;
    for (int l = range.begin; l < range.end; ++l)
      option.forward += Nanoseconds{1'000'000 + like[static_cast<size_t>(l)] * 100'000};
    option.backward = option.forward = option.forward / int64_t{range.devices};
    option.saved = {10 * (range.end - range.begin)};
    return std::vector<StageOption>{option};
  };
  const PipelinePlan each = plans_of(request).plans.front();
  EXPECT_EQ(asked, 55 * 2);
  asked = 0;
  request.microbatches[0].like = like;
  const PipelinePlan once = plans_of(request).plans.front();
  EXPECT_EQ(asked, (9 + 10 + 15) * 2);
  EXPECT_EQ(once.predicted, each.predicted);
  ASSERT_EQ(once.stages.size(), each.stages.size());
  for (size_t s = 0; s < once.stages.size(); ++s)
    EXPECT_EQ(once.stages[s].range, each.stages[s].range);
  request.microbatches[0].like.pop_back();
  EXPECT_THROW((void)plan_pipeline(request), Error);
}

// Cuts at every third layer give the plan of a request without stages between other cuts.
TEST(PipelinePlanner, CutsWhereItIsAsked) {
  PipelineRequest request = plain_request(10, {{"a", 2, {1}, {1000}}, {"b", 1, {1}, {1000}}}, 2);
  const Nanoseconds anywhere = plans_of(request).plans.front().predicted;
  request.cut_every = 3;
  const PipelinePlan some = plans_of(request).plans.front();
  request.cut_every = 1;
  const StageOptions plain = request.microbatches[0].options;
  request.microbatches[0].options = [plain](const StageRange& range) {
    const bool has = range.begin % 3 == 0 && (range.end % 3 == 0 || range.end == 10);
    return has ? plain(range) : std::vector<StageOption>{};
  };
  const PipelinePlan alone = plans_of(request).plans.front();
  EXPECT_EQ(some.predicted, alone.predicted);
  EXPECT_EQ(ranges_of(some), ranges_of(alone));
  EXPECT_GT(some.predicted, anywhere);
}

TEST(LinkCurve, IsLinearBetweenPoints) {
  const LinkCurve curve{{{{100}, {10}}, {{200}, {40}}}, {5}};
  EXPECT_EQ(occupied(curve, {50}), Nanoseconds{5});
  EXPECT_EQ(occupied(curve, {150}), Nanoseconds{25});
  EXPECT_EQ(occupied(curve, {400}), Nanoseconds{80});
  EXPECT_EQ(occupied(constant_bandwidth({1e9}, {}), {1'000'000}), Nanoseconds{1'000'000});
}

}  // namespace
}  // namespace medley
