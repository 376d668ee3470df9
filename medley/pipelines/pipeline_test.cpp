#include "medley/pipelines/pipeline.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "medley/base/error.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"
#include "medley/testing/formula.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using OptionTable = std::map<StageRange, std::vector<StageOption>>;

// A request and the table that it reads.
struct Example {
  OptionTable options;
  PipelineRequest request;
};

StageOptions lookup(const OptionTable& options) {
  return [&options](const StageRange& range) {
    const auto found = options.find(range);
    return found == options.end() ? std::vector<StageOption>{} : found->second;
  };
}

// Times that need not make sense: longer ranges and larger meshes may be faster, or not there.
Example random_example(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  Example example;
  PipelineRequest& request = example.request;
  request.layers = draw(0, 3) == 0 ? draw(1, 5) : draw(5, 8);
  const bool tight = draw(0, 1) == 1;  // memory for hardly more than one micro-batch
  const int pools = draw(1, 3);
  int devices = 6;
  for (int p = 0; p < pools; ++p) {
    PipelinePool pool;
    pool.name = std::string(1, static_cast<char>('a' + p));
    pool.devices = draw(1, std::min(devices - (pools - 1 - p), pools == 1 ? 6 : 3));
    devices -= pool.devices;
    for (int size = 1; size <= pool.devices; ++size)
      if (size == 1 || draw(0, 2) > 0) pool.sizes.push_back(size);
    pool.memory = {tight ? draw(6, 14) : draw(8, 40)};
    request.pools.push_back(pool);
  }
  request.links.assign(at(pools), {});
  const int slow = draw(0, 3);
  for (int from = 0; from < pools; ++from)
    for (int to = 0; to < pools; ++to) {
      auto& link = request.links[at(from)].emplace_back();
      if (from != to && draw(0, 9) == 0) continue;
      link = LinkCurve{{{Bytes{1}, Nanoseconds{from == to ? draw(0, 1) : draw(0, slow)}}},
                       Nanoseconds{draw(0, 2)}};
    }
  // Of times: none, in proportion to work, or so that short stages take less in sum and more chains
  // are between cheap and deep ones.
  const int rule = draw(0, 3);
  std::vector<int> work;
  for (int l = 0; l < request.layers; ++l) work.push_back(draw(1, 6));
  for (int p = 0; p < pools; ++p)
    for (const int size : request.pools[at(p)].sizes)
      for (int begin = 0; begin < request.layers; ++begin)
        for (int end = begin + 1, sum = 0; end <= request.layers; ++end) {
          sum += work[at(end - 1)] * (p + 1);
          auto& options = example.options[{begin, end, p, size}];
          for (int count = draw(0, 9) == 0 ? 0 : draw(1, 2); count-- > 0;) {
            const int work_done = rule == 1 ? 2 * sum : sum * (end - begin + 1);
            const int t = rule == 0 ? draw(1, 20) : 1 + work_done / (size + 1) + 2 * count;
            StageOption option;
            option.forward = {t / 3};
            option.backward = {t - t / 3};
            option.update = {draw(0, 3) == 0 ? draw(0, 12) : 0};
            option.persistent = {draw(0, 4)};
            option.transient = {draw(0, 2)};
            option.saved = {tight ? (end - begin) + count + draw(0, 3) : draw(0, 4 + 4 * count)};
            options.push_back(option);
          }
        }
  std::vector<CutBytes> cuts;
  for (int l = 1; l < request.layers; ++l) cuts.push_back({{draw(0, 6)}, {draw(0, 6)}});
  const int counts[] = {1, 3, 8, 40};
  request.microbatches = {{counts[draw(0, 3)], cuts, {}}};
  request.in_flight = std::array{
      InFlightRule::kPeriod, InFlightRule::kIdeal, InFlightRule::kPublished}[at(draw(0, 2))];
  if (draw(0, 2) == 0) request.shared = {draw(1, 40)};
  if (draw(0, 3) == 0) request.last_pool = draw(0, pools - 1);
  return example;
}

// All chains of stages, one by one; counts of each by medley/schedule, periods one after another.
class Exhaustive {
 public:
  explicit Exhaustive(const PipelineRequest& request)
      : request_(request), choice_(request.microbatches[0]) {}

  // Returns the shortest step, or nothing.
  std::optional<int64_t> run() {
    extend({0, 0, -1, 0}, 0);
    return best_;
  }

 private:
  void extend(StageRange before, unsigned finished) {
    if (before.end == request_.layers) return judge();
    for (int p = 0; p < static_cast<int>(request_.pools.size()); ++p) {
      const bool same = p == before.pool;
      if (!same && (finished >> p & 1u)) continue;
      const PipelinePool& pool = request_.pools[at(p)];
      const unsigned now = finished | (before.pool >= 0 && !same ? 1u << before.pool : 0u);
      // `devices` of `before` are all those used in its pool.
      const int used = same ? before.devices : 0;
      if (before.pool >= 0 && !add_boundary(before, p)) continue;
      for (int end = before.end + 1; end <= request_.layers; ++end)
        for (const int size : pool.sizes) {
          if (used + size > pool.devices) continue;
          for (const StageOption& option : choice_.options({before.end, end, p, size})) {
            stages_.push_back({{before.end, end, p, size}, option, 0, 0});
            extend({before.end, end, p, used + size}, now);
            stages_.pop_back();
          }
        }
      if (before.pool >= 0) boundaries_.pop_back();
    }
  }

  bool add_boundary(const StageRange& before, int to) {
    const auto& up = request_.links[at(before.pool)][at(to)];
    const auto& down = request_.links[at(to)][at(before.pool)];
    if (!up || !down) return false;
    const CutBytes& bytes = choice_.cuts[at(before.end - 1)];
    boundaries_.push_back({occupied(*up, bytes.up),
                           occupied(*down, bytes.down),
                           {(up->latency + down->latency).value / 2}});
    return true;
  }

  // What a step takes but for its period: the round trip of one micro-batch and the updates.
  int64_t once(int64_t& slowest) const {
    int64_t sum = 0, after = 0;
    for (size_t i = stages_.size(); i-- > 0;) {
      const StageOption& o = stages_[i].option;
      sum += (o.forward + o.backward).value;
      slowest = std::max(slowest, (o.forward + o.backward).value);
      if (i < boundaries_.size()) {
        const BoundaryTimes& b = boundaries_[i];
        sum += b.round_trip().value;
        slowest = std::max({slowest, b.forward.value, b.backward.value});
        after -= (b.backward + b.latency + o.backward).value;
      }
      after = std::max(after, o.update.value);
    }
    return sum + std::max(after, exchange()->value);
  }

  // What the ends exchange once a step; nothing if they cannot.
  std::optional<Nanoseconds> exchange() const {
    if (stages_.size() == 1 || request_.shared == Bytes{}) return Nanoseconds{};
    const auto first = at(stages_.front().range.pool);
    const auto& link = request_.links[first][at(stages_.back().range.pool)];
    if (!link) return std::nullopt;
    return occupied(*link, request_.shared) + link->latency;
  }

  bool fits(const ScheduleRequest& request, int64_t period) const {
    std::vector<int> counts(stages_.size(), 1);
    if (request_.in_flight == InFlightRule::kPeriod)
      counts = counts_for_period({period}, request.times);
    for (size_t i = counts.size() - 1; i-- > 0 && request_.in_flight != InFlightRule::kPeriod;) {
      const BoundaryTimes& b = boundaries_[i];
      const bool same = stages_[i].range.pool == stages_[i + 1].range.pool;
      counts[i] = counts[i + 1] + (request_.in_flight == InFlightRule::kIdeal
                                       ? ideal_growth(b.round_trip(), {period})
                                       : published_growth(b.forward + b.latency, {period}, same));
    }
    for (size_t i = 0; i < stages_.size(); ++i) {
      const StageOption& o = stages_[i].option;
      const Bytes memory = request_.pools[at(stages_[i].range.pool)].memory;
      if (o.persistent + o.transient + o.saved * std::min(counts[i], choice_.count) > memory)
        return false;
    }
    return true;
  }

  void judge() {
    if (!exchange()) return;
    if (request_.last_pool >= 0 && stages_.back().range.pool != request_.last_pool) return;
    int64_t period = 1;
    const int64_t first = once(period);
    const int64_t more = choice_.count - 1;
    PipelinePlan plan;
    plan.stages = stages_;
    plan.boundaries = boundaries_;
    plan.microbatches = choice_.count;
    std::optional<ScheduleRequest> request;
    // Longer ones than kLongestPeriod change nothing any more.
    for (; period <= kLongestPeriod; ++period) {
      if (best_ && first + more * period >= *best_) return;
      if (!request) request = schedule_request(plan);
      if (fits(*request, period)) {
        best_ = first + more * period;
        return;
      }
    }
  }

 public:
  static constexpr int64_t kLongestPeriod = 400;

 private:
  const PipelineRequest& request_;
  const MicrobatchChoice& choice_;
  std::vector<PipelineStage> stages_;
  std::vector<BoundaryTimes> boundaries_;
  std::optional<int64_t> best_;
};

std::optional<int64_t> predicted(const std::variant<PipelinePlans, Infeasible>& outcome) {
  const auto* found = std::get_if<PipelinePlans>(&outcome);
  if (found == nullptr) return std::nullopt;
  return found->plans.front().predicted.value;
}

// Neither the bounds nor dropping chains from fronts loses the best plan.
TEST(PipelinePlanner, FindsWhatExhaustiveSearchFinds) {
  const uint64_t seeds = seeds_of(1000);
  uint64_t feasible = 0, memory_bound = 0, several_stages = 0, unlike = 0, exchanging = 0;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    PipelineRequest& request = example.request;
    request.microbatches[0].options = lookup(example.options);
    const std::optional<int64_t> best = Exhaustive(request).run();
    const auto outcome = plan_pipeline(request);
    ASSERT_EQ(predicted(outcome), best);
    if (best) {
      const auto& found = std::get<PipelinePlans>(outcome);
      const PipelinePlan& plan = found.plans.front();
      EXPECT_EQ(found.lower_bound.value, *best);
      ++feasible;
      several_stages += plan.stages.size() > 1;
      exchanging += plan.exchange > Nanoseconds{};
      unlike += plan.stages.front().range.pool != plan.stages.back().range.pool;
      int64_t slowest = 1;
      for (const PipelineStage& s : plan.stages)
        slowest = std::max(slowest, (s.option.forward + s.option.backward).value);
      for (const BoundaryTimes& b : plan.boundaries)
        slowest = std::max({slowest, b.forward.value, b.backward.value});
      memory_bound += plan.period.value > slowest;
    }
    if (seed % 4 != 0) continue;
    if (best) {
      request.gap = 0.2;
      const auto rough = std::get<PipelinePlans>(plan_pipeline(request));
      EXPECT_LE(rough.lower_bound.value, *best);
      EXPECT_LE(static_cast<double>(rough.plans.front().predicted.value) * 0.8,
                static_cast<double>(*best));
      request.gap = 0;
      request.below = {*best};
      EXPECT_EQ(predicted(plan_pipeline(request)), std::nullopt);
      ++request.below.value;
      EXPECT_EQ(predicted(plan_pipeline(request)), best);
      request.below = PipelineRequest{}.below;
    }
    request.pruned = false;
    request.longest_period = {Exhaustive::kLongestPeriod};
    ASSERT_EQ(predicted(plan_pipeline(request)), best);
  }
  // The examples are not trivial.
  EXPECT_GT(feasible, seeds * 7 / 10);
  EXPECT_GT(several_stages, seeds / 4);
  EXPECT_GT(unlike, seeds / 10);
  EXPECT_GT(exchanging, seeds / 20);
  EXPECT_GT(memory_bound, seeds / 40);
}

// Layers that take 3 ms each on one device of the first pool, `slower` times that on the others,
// and do not profit from larger meshes.
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

// 6 layers at 3 ms and 3 at 6 ms: no other cut has stages of 18 ms, whichever pool comes first.
// Options are asked for once, for all devices; then some of them are searched, of a pool perhaps
// none.
TEST(PipelinePlanner, SearchesSomeOfTheDevices) {
  int possible = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Example example = random_example(seed);
    PipelineRequest& request = example.request;
    request.microbatches[0].options = lookup(example.options);
    const ChainSearches searches(request);
    std::mt19937_64 random(seed);
    for (int trial = 0; trial < 3; ++trial) {
      PipelineRequest some = request;
      std::vector<int> devices;
      for (PipelinePool& pool : some.pools)
        devices.push_back(pool.devices = static_cast<int>(random() % at(pool.devices + 1)));
      some.microbatches[0].count =
          1 + static_cast<int>(random() % at(request.microbatches[0].count));
      const std::optional<int64_t> best = Exhaustive(some).run();
      const std::vector<PipelinePlan> found =
          searches.on(devices, some.microbatches[0].count, kLongest);
      ASSERT_EQ(!found.empty(), best.has_value()) << seed;
      if (!best) continue;
      ++possible;
      EXPECT_EQ(found[0].predicted.value, *best) << seed;
      EXPECT_EQ(found[0].microbatches, some.microbatches[0].count) << seed;
    }
  }
  EXPECT_GT(possible, 300);
}

TEST(PipelinePlanner, GivesTheSlowerPoolFewerLayers) {
  const PipelineRequest request =
      plain_request(9, {{"fast", 1, {1}, {1000}}, {"slow", 1, {1}, {1000}}}, 2);
  const PipelinePlan plan = plans_of(request).plans.front();
  for (const PipelineStage& stage : plan.stages)
    EXPECT_EQ(stage.range.end - stage.range.begin, stage.range.pool == 0 ? 6 : 3);
  EXPECT_EQ(plan.period, Nanoseconds{18'000'000});
}

// The formula is that of medley/schedule, as long as nobody waits for updates.
TEST(PipelinePlanner, PredictsTheFormula) {
  const PipelineRequest request = plain_request(8, {{"a", 4, {1}, {1000}}});
  const PipelinePlan plan = plans_of(request).plans.front();
  EXPECT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(
      plan.predicted,
      estimate_pipeline(
          PipelineFormula::kOverlapped, schedule_request(plan).times.sizes[0], plan.microbatches));
}

// A link ten times as slow as all the work is worth no second pool.
TEST(PipelinePlanner, LeavesDevicesIdleBehindASlowLink) {
  PipelineRequest request = plain_request(4, {{"a", 1, {1}, {1000}}, {"b", 1, {1}, {1000}}});
  request.links[0][1] = request.links[1][0] = constant_bandwidth({1e4}, {});
  EXPECT_THAT(ranges_of(plans_of(request).plans.front()), ElementsAre(StageRange{0, 4, 0, 1}));
}

// Only the last pool's devices have room for the last layer's option, so that it has to be last.
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

// Four stages need 4, 3, 2 and 1 in flight. With room for two in the first one, the period has to
// be longer than a stage; and recomputing, a third slower, is better if that is on offer.
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

// The update of the last stage is over before the first stage has gone backward.
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

// More micro-batches are smaller bubbles, until what each costs beyond its rows outweighs them.
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
  // Two layers of 11 bytes on each of two devices, that have 20.
  const auto outcome = plan_pipeline(plain_request(4, {{"a", 2, {1}, {20}}}));
  EXPECT_THAT(std::get<Infeasible>(outcome).reason,
              testing::AllOf(HasSubstr("on 1 of a needs 22 B on each device with 1 in flight"),
                             HasSubstr("2 B more than it has")));
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

// No schedule beats the bound, nor the closer one, which counts the update of the first stage, too;
// and with the planned counts the timer comes close to the prediction.
TEST(PipelinePlanner, AgreesWithTheTimer) {
  double most = 0;
  int checked = 0, is_closer = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    example.request.microbatches[0].options = lookup(example.options);
    const auto outcome = plan_pipeline(example.request);
    if (std::holds_alternative<Infeasible>(outcome)) continue;
    const auto& found = std::get<PipelinePlans>(outcome);
    const PipelinePlan& plan = found.plans.front();
    const ScheduleRequest request = schedule_request(plan);
    std::vector<int> counts;
    for (const PipelineStage& stage : plan.stages) counts.push_back(stage.in_flight);
    for (size_t i = 0; i < counts.size(); ++i) EXPECT_LE(counts[i], plan.stages[i].room);
    const Nanoseconds finish = h1f1b(request).finish;
    EXPECT_GE(finish, found.step_bound);
    example.request.closer = true;
    const Nanoseconds closer = std::get<PipelinePlans>(plan_pipeline(example.request)).step_bound;
    EXPECT_GE(finish + plan.stages[0].option.update, closer);
    is_closer += closer > found.step_bound ? 1 : 0;
    if (example.request.in_flight != InFlightRule::kPeriod || plan.stages.size() < 2) continue;
    ++checked;
    const Nanoseconds timed =
        time_calls(order_calls(counts, plan.microbatches), request.times).finish;
    most = std::max(most, timed / plan.predicted);
  }
  EXPECT_GT(checked, 30);
  EXPECT_GT(is_closer, 30);
  EXPECT_LE(most, 1.001);
}

// An embedding, four blocks of two layers and a head: of 55 ranges nine begin with the embedding
// and end in a block, ten end with the head, and the others differ in length and where in a block
// they begin.
TEST(PipelinePlanner, AsksForStagesThatAreAlikeOnce) {
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

// As close as plan_pipeline() finds it, and not looked for beyond what is enough.
TEST(PipelinePlanner, BoundsAStepAsCloselyAsIsEnough) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    example.request.microbatches[0].options = lookup(example.options);
    example.request.in_flight = InFlightRule::kPeriod;
    example.request.closer = true;
    const auto outcome = plan_pipeline(example.request);
    if (std::holds_alternative<Infeasible>(outcome)) continue;
    const auto& found = std::get<PipelinePlans>(outcome);
    example.request.below = found.plans.front().predicted;
    const Nanoseconds enough{found.step_bound.value * 9 / 10};
    EXPECT_EQ(closer_step_bound(example.request, example.request.below * int64_t{2}),
              found.step_bound);
    EXPECT_LE(closer_step_bound(example.request, enough), found.step_bound);
    EXPECT_GE(closer_step_bound(example.request, enough), enough * int64_t{99} / int64_t{100});
    ++checked;
  }
  EXPECT_GT(checked, 30);
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
