#include "medley/chains/pipeline.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "medley/chains/chains.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"
#include "medley/testing/formula.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

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

// Returns arbitrary times: longer ranges and larger meshes may be faster, or missing.
Example random_example(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  Example example;
  PipelineRequest& request = example.request;
  request.layers = draw(0, 3) == 0 ? draw(1, 5) : draw(5, 8);
  const bool tight = draw(0, 1) == 1;  // memory for little more than one micro-batch
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
    pool.one_port = draw(0, 1) == 1;
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
  // Rules for weight times: zero, proportional to work, or such that short stages have smaller sums
  // and more chains are between cheap and deep ones.
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
  request.use = std::array<std::optional<DeviceUse>, 3>{
      DeviceUse::kOnce, DeviceUse::kCounted, std::nullopt}[at(draw(0, 2))];
  if (draw(0, 2) == 0) request.shared = {draw(1, 40)};
  if (draw(0, 3) == 0) request.last_pool = draw(0, pools - 1);
  return example;
}

// Enumerates all chains of stages, with counts by medley/schedule and periods in sequence.
class Exhaustive {
 public:
  // `comes_back`: whether chains may return to a pool if each is to be used once.
  explicit Exhaustive(const PipelineRequest& request, bool comes_back = true)
      : request_(request), choice_(request.microbatches[0]) {
    for (const auto& row : request.links)
      for (const auto& link : row)
        comes_back_ |= comes_back && exchange_time(link, request.shared) != Nanoseconds{};
  }

  // Returns the shortest step, or nullopt.
  std::optional<int64_t> run() {
    std::vector<int> left;
    for (const PipelinePool& pool : request_.pools) left.push_back(pool.devices);
    extend(0, -1, left);
    return best_;
  }
  // Calls `show` for all chains with room for a micro-batch instead.
  void run(const std::function<void(const PipelinePlan&)>& show) {
    show_ = show;
    run();
  }

 private:
  // `left`: devices of each pool.
  void extend(int begin, int before, std::vector<int> left) {
    if (begin == request_.layers) return judge();
    for (int p = 0; p < static_cast<int>(request_.pools.size()); ++p) {
      std::vector<int> rest = left;
      const bool is_first = std::ranges::all_of(
          stages_, [&](const PipelineStage& stage) { return stage.range.pool == before; });
      // The first stages may use the pool of the last ones.
      const bool may_come_back = is_first && comes_back_;
      if (before >= 0 && before != p && request_.use == DeviceUse::kOnce && !may_come_back)
        rest[at(before)] = 0;
      if (before >= 0 && !add_boundary(begin, before, p)) continue;
      for (int end = begin + 1; end <= request_.layers; ++end)
        for (const int size : request_.pools[at(p)].sizes) {
          if (size > rest[at(p)]) continue;
          rest[at(p)] -= size;
          for (const StageOption& option : choice_.options({begin, end, p, size})) {
            stages_.push_back({{begin, end, p, size}, option, 0, 0});
            extend(end, p, rest);
            stages_.pop_back();
          }
          rest[at(p)] += size;
        }
      if (before >= 0) boundaries_.pop_back();
    }
  }

  bool add_boundary(int cut, int from, int to) {
    const auto& up = request_.links[at(from)][at(to)];
    const auto& down = request_.links[at(to)][at(from)];
    if (!up || !down) return false;
    const CutBytes& bytes = choice_.cuts[at(cut - 1)];
    boundaries_.push_back({occupied(*up, bytes.up),
                           occupied(*down, bytes.down),
                           {(up->latency + down->latency).value / 2}});
    return true;
  }

  // Returns a step without its periods: the round trip of one micro-batch and the updates.
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

  // Returns the time in which the ends exchange per step; nullopt without a link.
  std::optional<Nanoseconds> exchange() const {
    if (stages_.size() == 1 || request_.shared == Bytes{}) return Nanoseconds{};
    const auto first = at(stages_.front().range.pool);
    const auto& link = request_.links[first][at(stages_.back().range.pool)];
    if (!link) return std::nullopt;
    return occupied(*link, request_.shared) + link->latency;
  }

  bool fits(const ScheduleRequest& request, int64_t period) const {
    const std::vector<int> counts = counts_for_period({period}, request.times);
    for (size_t i = 0; i < stages_.size(); ++i) {
      const StageOption& o = stages_[i].option;
      const Bytes memory = request_.pools[at(stages_[i].range.pool)].memory;
      if (o.persistent + o.transient + o.saved * std::min(counts[i], choice_.count) > memory)
        return false;
    }
    return true;
  }

  bool first_comes_back_in_the_middle() const {
    const int first = stages_.front().range.pool;
    int runs = 0, before = -1;
    for (const PipelineStage& stage : stages_) {
      runs += stage.range.pool == first && before != first;
      before = stage.range.pool;
    }
    return runs > 1 && before != first;
  }

  void judge() {
    const std::vector<BoundaryTimes> alone = boundaries_;
    for (size_t i = 0; i < boundaries_.size(); ++i)
      if (shares_a_port(i)) {
        boundaries_[i].forward = boundaries_[i].forward * int64_t{2};
        boundaries_[i].backward = boundaries_[i].backward * int64_t{2};
      }
    judge_times();
    boundaries_ = alone;
  }

  // Returns whether a chain returns over the boundary to a pool that it left through one port.
  bool shares_a_port(size_t boundary) const {
    const int pool = stages_[boundary].range.pool;
    if (pool == stages_[boundary + 1].range.pool || !request_.pools[at(pool)].one_port)
      return false;
    return std::any_of(stages_.begin() + static_cast<std::ptrdiff_t>(boundary) + 1,
                       stages_.end(),
                       [&](const PipelineStage& behind) { return behind.range.pool == pool; });
  }

  void judge_times() {
    if (!exchange()) return;
    if (request_.last_pool >= 0 && stages_.back().range.pool != request_.last_pool) return;
    if (request_.use == DeviceUse::kOnce && first_comes_back_in_the_middle()) return;
    PipelinePlan plan;
    plan.stages = stages_;
    plan.boundaries = boundaries_;
    plan.microbatches = choice_.count;
    if (show_) return show_with_rooms(plan);
    int64_t period = 1;
    const int64_t first = once(period);
    const int64_t more = choice_.count - 1;
    std::optional<ScheduleRequest> request;
    // Periods above kLongestPeriod change nothing.
    for (; period <= kLongestPeriod; ++period) {
      if (best_ && first + more * period >= *best_) return;
      if (!request) request = schedule_request(plan);
      if (fits(*request, period)) {
        best_ = first + more * period;
        return;
      }
    }
  }

  void show_with_rooms(PipelinePlan& plan) const {
    for (PipelineStage& stage : plan.stages) {
      const StageOption& o = stage.option;
      const Bytes left = request_.pools[at(stage.range.pool)].memory - o.persistent - o.transient;
      if (left < Bytes{}) return;
      const int64_t most = o.saved > Bytes{} ? left.value / o.saved.value : choice_.count;
      stage.room = static_cast<int>(std::min<int64_t>(most, choice_.count));
      if (stage.room < 1) return;
    }
    show_(plan);
  }

 public:
  static constexpr int64_t kLongestPeriod = 400;

 private:
  const PipelineRequest& request_;
  const MicrobatchChoice& choice_;
  bool comes_back_ = false;  // if some ends exchange
  std::vector<PipelineStage> stages_;
  std::vector<BoundaryTimes> boundaries_;
  std::optional<int64_t> best_;
  std::function<void(const PipelinePlan&)> show_;
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
    if (seed % 4 == 0 && best) {
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
  }
  // The examples are not trivial.
  EXPECT_GT(feasible, seeds * 7 / 10);
  EXPECT_GT(several_stages, seeds / 4);
  EXPECT_GT(unlike, seeds / 10);
  EXPECT_GT(exchanging, seeds / 20);
  EXPECT_GT(memory_bound, seeds / 40);
}

// Ends exchange much, at no cost within a pool: the result equals enumeration. Chains with too
// little gain from returning to a pool are excluded, for any period.
TEST(PipelinePlanner, ComesBackToAPoolWhereThatGainsEnough) {
  int come_back = 0, left_out = 0;
  for (uint64_t seed = 0; seed < seeds_of(1000); ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    PipelineRequest& request = example.request;
    request.microbatches[0].options = lookup(example.options);
    request.use = DeviceUse::kOnce;
    request.shared = {static_cast<int64_t>(seed % 400)};
    for (size_t pool = 0; pool < request.pools.size(); ++pool)
      request.links[pool][pool] = LinkCurve{{{Bytes{1}, Nanoseconds{}}}, {}};
    const std::optional<int64_t> with = Exhaustive(request).run();
    const std::optional<int64_t> without = Exhaustive(request, false).run();
    ASSERT_EQ(predicted(plan_pipeline(request)), with);
    come_back += with != without;
    request.least_gain = {50};
    const std::optional<int64_t> found = predicted(plan_pipeline(request));
    EXPECT_TRUE(found == without || (found && *found >= *with && (!without || *found < *without)));
    request.least_gain = kLongest;
    EXPECT_EQ(predicted(plan_pipeline(request)), without);
    left_out += found != with;
  }
  EXPECT_GT(come_back, 10);
  EXPECT_GT(left_out, 1);
}

// Options are requested once, for all devices; some devices are then searched, maybe none of a
// pool.
TEST(PipelinePlanner, SearchesSomeOfTheDevices) {
  int possible = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Example example = random_example(seed);
    PipelineRequest& request = example.request;
    request.microbatches[0].options = lookup(example.options);
    const Chains searches(request);
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

// No schedule beats the bound, nor the closer one with the first stage's update. With the planned
// counts the timer is close to the prediction.
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
    if (plan.stages.size() < 2) continue;
    ++checked;
    const Nanoseconds timed =
        time_calls(order_calls(counts, plan.microbatches), request.times).finish;
    most = std::max(most, (timed - Nanoseconds{1}) / plan.predicted);  // rounded latencies
  }
  EXPECT_GT(checked, 30);
  EXPECT_GT(is_closer, 30);
  EXPECT_LE(most, 1.001);
}

// Returns the time of a plan's stages with random counts that fit, deferred ones too.
Nanoseconds timed_at_random(const PipelinePlan& plan, std::mt19937_64& random) {
  const auto draw = [&](int most) { return static_cast<int>(random() % at(most + 1)); };
  std::vector<int> in_flight, late;
  int most = plan.microbatches;
  for (const PipelineStage& stage : plan.stages) {
    most = std::min(most, stage.room);
    most = 1 + draw(most - 1);
    in_flight.push_back(most);
    late.push_back(
        late.empty() || stage.option.weights == Nanoseconds{} ? 0 : draw(stage.room - most + 1));
  }
  const PipelineTimes times = schedule_request(plan).times;
  const PipelineOrder order =
      with_deferred_weights(order_calls(in_flight, plan.microbatches), late);
  const Timing timing = time_calls(order, times);
  const Nanoseconds first = timing.calls[0].back().end + plan.stages[0].option.update;
  return std::max(first, timing.finish);
}

// No chain takes less for any counts and deferral; and prices of devices under any schedule exclude
// none.
TEST(PipelinePlanner, DeferredWeightsNeverBeatTheBound) {
  int feasible = 0, with_late = 0, faster = 0;
  for (uint64_t seed = 0; seed < seeds_of(60); ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    std::mt19937_64 random(seed);
    for (auto& [range, options] : example.options)
      for (StageOption& option : options)
        if (random() % 4 > 0)
          option.weights = {static_cast<int64_t>(random() % at(option.backward.value + 1))};
    PipelineRequest& request = example.request;
    request.microbatches[0].options = lookup(example.options);
    request.closer = true;
    const auto outcome = plan_pipeline(request);
    const auto* found = std::get_if<PipelinePlans>(&outcome);
    const Nanoseconds bound = found ? found->step_bound : kLongest;
    PipelineRequest at_prices = request;
    at_prices.use = DeviceUse::kAny;
    const Chains priced(at_prices);
    std::optional<std::pair<PipelinePlan, Nanoseconds>> fastest;
    Exhaustive(request).run([&](const PipelinePlan& plan) {
      ++feasible;
      const PipelineTurns turns = turns_of(plan);
      const bool is_late = std::ranges::max(turns.deferred_weights) > 0;
      with_late += is_late;
      EXPECT_GE(turns.step, bound);
      for (const Closeness closeness : {Closeness::kRough, Closeness::kRooms, Closeness::kClose})
        EXPECT_GE(priced.most_microbatches(plan, turns.step, closeness), plan.microbatches);
      if (!fastest || turns.step < fastest->second) fastest = {plan, turns.step};
      for (int i = 0; i < 3; ++i) EXPECT_GE(timed_at_random(plan, random), bound);
      if (!is_late) return;
      PipelinePlan whole = plan;
      for (PipelineStage& stage : whole.stages) stage.option.weights = {};
      faster += turns.step < turns_of(whole).step;
    });
    if (!fastest) continue;
    const Chains::Prices prices(request.pools.size(), 1);
    int64_t devices = 0;
    for (const PipelineStage& stage : fastest->first.stages) devices += stage.range.devices;
    for (const Closeness closeness : {Closeness::kRough, Closeness::kRooms, Closeness::kClose})
      EXPECT_TRUE(priced.under_any_schedule(
          fastest->first.microbatches, fastest->second, prices, devices + 1, closeness));
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_GT(with_late, 100);
  EXPECT_EQ(faster, with_late);
}

// The bound is as close as plan_pipeline() finds it, and not searched beyond `enough`.
TEST(PipelinePlanner, BoundsAStepAsCloselyAsIsEnough) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    example.request.microbatches[0].options = lookup(example.options);
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

// Devices with prices are not counted. A chain that returns to a pool may share its port with
// itself, and then exceeds the searched period.
TEST(Chains, PlansAtPricesFitTheirPeriod) {
  int comes_back = 0;
  for (uint64_t seed = 0; seed < seeds_of(1000); ++seed) {
    SCOPED_TRACE(seed);
    Example example = random_example(seed);
    example.request.microbatches[0].options = lookup(example.options);
    example.request.use = DeviceUse::kAny;
    const Chains chains(example.request);
    const Chains::Prices nothing(example.request.pools.size(), 0);
    for (int64_t period = chains.longest_period().value; period >= 1; period = period * 2 / 3) {
      const auto found = chains.at_period({period}, nothing, int64_t{1} << 40);
      if (!found) break;
      const PipelinePlan& plan = found->plan;
      const ScheduleRequest schedule = schedule_request(plan);
      const std::vector<int> counts = counts_for_period(plan.period, schedule.times);
      Nanoseconds way = after_schedule(plan);
      for (size_t s = 0; s < plan.stages.size(); ++s) {
        EXPECT_LE(std::min(counts[s], plan.microbatches), plan.stages[s].room);
        way += plan.stages[s].option.forward + plan.stages[s].option.backward -
               plan.stages[s].option.weights * int64_t{2};
        if (s == plan.boundaries.size()) continue;
        const BoundaryTimes& boundary = plan.boundaries[s];
        EXPECT_LE(std::max(boundary.forward, boundary.backward), plan.period);
        way += boundary.round_trip();
      }
      EXPECT_GE(plan.predicted, way + plan.period * int64_t{plan.microbatches - 1});
      comes_back += plan.period > Nanoseconds{period};
    }
  }
  EXPECT_GT(comes_back, 0);
}

}  // namespace
}  // namespace medley
