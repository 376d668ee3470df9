#include "medley/planner/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "medley/base/error.h"
#include "medley/schedule/formula.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"

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
  request.links.assign(static_cast<size_t>(pools), {});
  const int slow = draw(0, 3);
  for (int from = 0; from < pools; ++from)
    for (int to = 0; to < pools; ++to) {
      auto& link = request.links[static_cast<size_t>(from)].emplace_back();
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
    for (const int size : request.pools[static_cast<size_t>(p)].sizes)
      for (int begin = 0; begin < request.layers; ++begin)
        for (int end = begin + 1, sum = 0; end <= request.layers; ++end) {
          sum += work[static_cast<size_t>(end - 1)] * (p + 1);
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
  request.in_flight = std::array{InFlightRule::kPeriod,
                                 InFlightRule::kIdeal,
                                 InFlightRule::kPublished}[static_cast<size_t>(draw(0, 2))];
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
      const PipelinePool& pool = request_.pools[static_cast<size_t>(p)];
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
    const auto& up = request_.links[static_cast<size_t>(before.pool)][static_cast<size_t>(to)];
    const auto& down = request_.links[static_cast<size_t>(to)][static_cast<size_t>(before.pool)];
    if (!up || !down) return false;
    const CutBytes& bytes = choice_.cuts[static_cast<size_t>(before.end - 1)];
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
        sum += (b.forward + b.backward + b.latency * 2).value;
        slowest = std::max({slowest, b.forward.value, b.backward.value});
        after -= (b.backward + b.latency + o.backward).value;
      }
      after = std::max(after, o.update.value);
    }
    return sum + after;
  }

  bool fits(const ScheduleRequest& request, int64_t period) const {
    std::vector<int> counts(stages_.size(), 1);
    if (request_.in_flight == InFlightRule::kPeriod)
      counts = counts_for_period({period}, request.times);
    for (size_t i = counts.size() - 1; i-- > 0 && request_.in_flight != InFlightRule::kPeriod;) {
      const BoundaryTimes& b = boundaries_[i];
      const bool same = stages_[i].range.pool == stages_[i + 1].range.pool;
      counts[i] =
          counts[i + 1] + (request_.in_flight == InFlightRule::kIdeal
                               ? ideal_growth(b.forward + b.backward + b.latency * 2, {period})
                               : published_growth(b.forward + b.latency, {period}, same));
    }
    for (size_t i = 0; i < stages_.size(); ++i) {
      const StageOption& o = stages_[i].option;
      const Bytes memory = request_.pools[static_cast<size_t>(stages_[i].range.pool)].memory;
      if (o.persistent + o.transient + o.saved * std::min(counts[i], choice_.count) > memory)
        return false;
    }
    return true;
  }

  void judge() {
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
  int feasible = 0, memory_bound = 0, several_stages = 0, unlike = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
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
      unlike += plan.stages.front().range.pool != plan.stages.back().range.pool;
      int64_t slowest = 1;
      for (const PipelineStage& s : plan.stages)
        slowest = std::max(slowest, (s.option.forward + s.option.backward).value);
      for (const BoundaryTimes& b : plan.boundaries)
        slowest = std::max({slowest, b.forward.value, b.backward.value});
      memory_bound += plan.period.value > slowest;
    }
    if (seed % 4 != 0) continue;
    request.pruned = false;
    request.longest_period = {Exhaustive::kLongestPeriod};
    ASSERT_EQ(predicted(plan_pipeline(request)), best);
  }
  // The examples are not trivial.
  EXPECT_GT(feasible, 700);
  EXPECT_GT(several_stages, 250);
  EXPECT_GT(unlike, 100);
  EXPECT_GT(memory_bound, 30);
}

}  // namespace
}  // namespace medley
