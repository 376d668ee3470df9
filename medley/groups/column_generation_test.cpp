#include "medley/groups/column_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "medley/base/at.h"
#include "medley/schedule/h1f1b.h"
#include "medley/schedule/period.h"

namespace medley {
namespace {

using OptionTable = std::map<StageRange, std::vector<StageOption>>;

// Some devices of a few pools, and what stages take for micro-batches of one or two sizes.
struct Example {
  PipelineRequest request;  // but for its micro-batches
  std::vector<int> devices;
  int64_t rows = 1;  // of a step
  std::vector<int64_t> rows_of_microbatch;
  std::vector<std::unique_ptr<OptionTable>> options;  // [choice]
  std::vector<MicrobatchChoice> choices;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 random_;
};

void add_pools(Example& example, Draw& draw) {
  PipelineRequest& request = example.request;
  const int pools = draw(1, 3);
  int left = draw(pools, 6);
  const bool tight = draw(0, 1) == 1;
  for (int p = 0; p < pools; ++p) {
    PipelinePool& pool = request.pools.emplace_back();
    pool.name = std::string(1, static_cast<char>('a' + p));
    pool.devices = p + 1 == pools ? left : draw(1, left - (pools - 1 - p));
    left -= pool.devices;
    for (int size = 1; size <= pool.devices; ++size)
      if (size == 1 || draw(0, 2) == 0) pool.sizes.push_back(size);
    pool.memory = {tight ? draw(6, 14) : draw(10, 40)};
    example.devices.push_back(pool.devices);
  }
  request.links.assign(at(pools), {});
  for (int from = 0; from < pools; ++from)
    for (int to = 0; to < pools; ++to) {
      auto& link = request.links[at(from)].emplace_back();
      if (from != to && draw(0, 9) == 0) continue;
      link = LinkCurve{{{Bytes{1}, Nanoseconds{from == to ? draw(0, 1) : draw(0, 3)}}},
                       Nanoseconds{draw(0, 2)}};
    }
}

void add_choice(Example& example, int64_t rows, Draw& draw) {
  const PipelineRequest& request = example.request;
  auto table = std::make_unique<OptionTable>();
  for (size_t p = 0; p < request.pools.size(); ++p)
    for (const int size : request.pools[p].sizes)
      for (int begin = 0; begin < request.layers; ++begin)
        for (int end = begin + 1; end <= request.layers; ++end)
          for (int count = draw(0, 9) == 0 ? 0 : draw(1, 2); count-- > 0;) {
            const int work = static_cast<int>(rows + 1) * (end - begin) * draw(1, 6);
            const int time = 1 + work / size;
            StageOption& option = (*table)[{begin, end, static_cast<int>(p), size}].emplace_back();
            option.forward = {time / 3};
            option.backward = {time - time / 3};
            option.update = {draw(0, 3) == 0 ? draw(0, 12) : 0};
            option.persistent = {draw(0, 4)};
            option.saved = {draw(0, 4)};
            option.transient = {draw(0, 2)};
          }
  MicrobatchChoice choice;
  choice.count = static_cast<int>((example.rows + rows - 1) / rows);
  for (int l = 1; l < request.layers; ++l) choice.cuts.push_back({{draw(0, 4)}, {draw(0, 4)}});
  choice.options = [known = table.get()](const StageRange& range) {
    const auto found = known->find(range);
    return found == known->end() ? std::vector<StageOption>{} : found->second;
  };
  example.rows_of_microbatch.push_back(rows);
  example.options.push_back(std::move(table));
  example.choices.push_back(std::move(choice));
}

Example random_example(uint64_t seed) {
  Draw draw(seed);
  Example example;
  example.request.layers = draw(0, 3) == 0 ? draw(4, 6) : draw(1, 4);
  example.rows = draw(2, 40);
  add_pools(example, draw);
  const std::array<int64_t, 3> sizes{1, 2, 4};
  const int first = draw(0, 2);
  add_choice(example, sizes[at(first)], draw);
  if (first < 2 && draw(0, 1) == 1) add_choice(example, sizes[at(first + 1)], draw);
  return example;
}

// All sets of pipelines on the devices, all chains of each, one by one. Counts by medley/schedule.
class Exhaustive {
 public:
  explicit Exhaustive(const Example& example) : example_(example) {
    for (choice_ = 0; choice_ < example.choices.size(); ++choice_) {
      std::vector<int> left = example.devices;
      extend(0, left);
    }
  }

  size_t num_chains() const { return chains_.size(); }

  // The shortest step of one pipeline with all micro-batches of a choice.
  std::optional<int64_t> best_pipeline(size_t choice) const {
    std::optional<int64_t> best;
    for (const auto& [devices, steps] : steps_)
      if (const auto found = steps.find({choice, example_.choices[choice].count});
          found != steps.end())
        best = std::min(best.value_or(found->second), found->second);
    return best;
  }

  // What all chains do in a step in parts, at most, under any schedule.
  double rows_in_parts(int64_t step) const {
    std::vector<MasterColumn> columns;
    for (const Known& chain : chains_) {
      const int64_t rows = example_.rows_of_microbatch[chain.choice];
      int64_t count = 0;
      while (count * rows < example_.rows && may_do(chain, count + 1, step)) ++count;
      columns.push_back(
          {chain.devices, static_cast<double>(std::min(example_.rows, count * rows))});
    }
    return solve_master(example_.devices, columns).rows;
  }

  // The shortest step; nothing if no pipeline fits.
  std::optional<int64_t> run() const {
    if (steps_.empty()) return std::nullopt;
    int64_t low = 0, high = 1 << 20;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (most_rows(middle, example_.devices, steps_.begin()) >= example_.rows ? high : low) = middle;
    }
    return high;
  }

 private:
  struct Known {
    size_t choice = 0;
    std::vector<int> devices;
    PipelinePlan plan;
  };
  // [choice, micro-batches] how long they take at least.
  using Steps = std::map<std::pair<size_t, int>, int64_t>;
  using ByDevices = std::map<std::vector<int>, Steps>;

  int64_t rows_of(const Steps& steps, int64_t step) const {
    int64_t most = 0;
    for (const auto& [key, time] : steps)
      if (time <= step) most = std::max(most, example_.rows_of_microbatch[key.first] * key.second);
    return most;
  }

  int64_t most_rows(int64_t step,
                    const std::vector<int>& left,
                    ByDevices::const_iterator from) const {
    int64_t most = 0;
    for (auto next = from; next != steps_.end(); ++next) {
      std::vector<int> rest = left;
      bool fits = true;
      for (size_t p = 0; p < rest.size(); ++p) fits &= (rest[p] -= next->first[p]) >= 0;
      if (!fits) continue;
      most = std::max(most, rows_of(next->second, step) + most_rows(step, rest, next));
    }
    return most;
  }

  void extend(int begin, std::vector<int>& left) {
    if (begin == example_.request.layers) return judge(left);
    for (int p = 0; p < static_cast<int>(left.size()); ++p) {
      const bool first = plan_.stages.empty();
      if (!first && !add_boundary(plan_.stages.back().range, p)) continue;
      for (const int size : example_.request.pools[at(p)].sizes) {
        if (size > left[at(p)]) continue;
        left[at(p)] -= size;
        for (int end = begin + 1; end <= example_.request.layers; ++end)
          for (const StageOption& option :
               example_.choices[choice_].options({begin, end, p, size})) {
            plan_.stages.push_back({{begin, end, p, size}, option, 0, 0});
            extend(end, left);
            plan_.stages.pop_back();
          }
        left[at(p)] += size;
      }
      if (!first) plan_.boundaries.pop_back();
    }
  }

  bool add_boundary(const StageRange& before, int to) {
    const auto& up = example_.request.links[at(before.pool)][at(to)];
    const auto& down = example_.request.links[at(to)][at(before.pool)];
    if (!up || !down) return false;
    const CutBytes& cut = example_.choices[choice_].cuts[at(before.end - 1)];
    plan_.boundaries.push_back({occupied(*up, cut.up),
                                occupied(*down, cut.down),
                                {(up->latency + down->latency).value / 2}});
    return true;
  }

  void judge(const std::vector<int>& left) {
    std::vector<int> used;
    for (size_t p = 0; p < left.size(); ++p) used.push_back(example_.devices[p] - left[p]);
    chains_.push_back({choice_, used, plan_});
    for (int count = 1; count <= example_.choices[choice_].count; ++count)
      if (const std::optional<int64_t> step = step_of(count)) {
        const auto [known, is_new] = steps_[used].try_emplace({choice_, count}, *step);
        known->second = std::min(known->second, *step);
      }
  }

  // The equations of pipeline.h.
  std::optional<int64_t> step_of(int count) {
    plan_.microbatches = count;
    Nanoseconds sum, after, period{1};
    for (size_t i = plan_.stages.size(); i-- > 0;) {
      PipelineStage& stage = plan_.stages[i];
      const StageOption& o = stage.option;
      const Bytes free =
          example_.request.pools[at(stage.range.pool)].memory - o.persistent - o.transient;
      stage.room = free < Bytes{}       ? 0
                   : o.saved.value == 0 ? count
                                        : static_cast<int>(free.value / o.saved.value);
      if (stage.room < 1) return std::nullopt;
      stage.room = std::min(stage.room, count);
      sum += o.forward + o.backward;
      period = std::max(period, o.forward + o.backward);
      if (i < plan_.boundaries.size()) {
        const BoundaryTimes& b = plan_.boundaries[i];
        sum += b.round_trip();
        period = std::max({period, b.forward, b.backward});
        after = after - o.backward - b.backward - b.latency;
      }
      after = std::max(o.update, after);
    }
    const ScheduleRequest request = schedule_request(plan_);
    const auto fits = [&](Nanoseconds at_period) {
      const std::vector<int> counts = counts_for_period(at_period, request.times);
      for (size_t i = 0; i < counts.size(); ++i)
        if (std::min(counts[i], count) > plan_.stages[i].room) return false;
      return true;
    };
    while (!fits(period)) period += Nanoseconds{1};
    return (sum + period * (count - 1) + after).value;
  }

  // The equations of priced_chains.h.
  bool may_do(const Known& chain, int64_t count, int64_t step) const {
    const std::vector<PipelineStage>& stages = chain.plan.stages;
    int64_t before = 0, longest = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      const StageOption& o = stages[i].option;
      const int64_t time = (o.forward + o.backward).value;
      longest = std::max(longest, before + count * time);
      int64_t stays = 0;
      for (size_t j = i; j < stages.size(); ++j) {
        stays += (stages[j].option.forward + stages[j].option.backward).value;
        if (j + 1 < stages.size()) stays += chain.plan.boundaries[j].round_trip().value;
      }
      const Bytes free =
          example_.request.pools[at(stages[i].range.pool)].memory - o.persistent - o.transient;
      const int64_t most = example_.choices[chain.choice].count;
      const int64_t room = free < Bytes{}      ? 0
                           : o.saved > Bytes{} ? free.value / o.saved.value
                                               : most;
      if (room < 1 || (room < most && count * stays > step * room)) return false;
      before += time;
      if (i + 1 == stages.size()) break;
      const BoundaryTimes& boundary = chain.plan.boundaries[i];
      before += boundary.round_trip().value;
      if (count * std::max(boundary.forward, boundary.backward).value > step) return false;
    }
    return longest + stages[0].option.update.value <= step;
  }

  const Example& example_;
  size_t choice_ = 0;
  PipelinePlan plan_;
  ByDevices steps_;
  std::vector<Known> chains_;
};

struct Searched {
  std::vector<std::unique_ptr<PricedChains>> chains;
  std::unique_ptr<ColumnGeneration> columns;
};

Searched search(const Example& example, bool counted) {
  Searched searched;
  searched.columns = std::make_unique<ColumnGeneration>(example.devices, example.rows);
  for (size_t c = 0; c < example.choices.size(); ++c) {
    PipelineRequest request = example.request;
    request.microbatches = {example.choices[c]};
    searched.chains.push_back(std::make_unique<PricedChains>(request, counted));
    searched.columns->add_choice(example.rows_of_microbatch[c], *searched.chains.back());
  }
  return searched;
}

TEST(ColumnGeneration, NoStepIsShorterThanItsBound) {
  int possible = 0;
  double sum = 0, rows_found = 0;  // in parts of what there is
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Example example = random_example(seed);
    const std::optional<int64_t> best = Exhaustive(example).run();
    for (const bool counted : {false, true}) {
      const Searched searched = search(example, counted);
      const Nanoseconds start{best.value_or(1000)};
      const double rows = searched.columns->generate(start, {});
      const Nanoseconds rough = searched.columns->bound(start, Closeness::kRough, {.closer = 0});
      const Nanoseconds bound = searched.columns->bound(start, Closeness::kClose, {.closer = 0});
      if (!best) {
        if (counted) EXPECT_EQ(rows, 0) << seed;
        continue;
      }
      EXPECT_LT(bound.value, *best) << seed;
      EXPECT_LE(rough, bound) << seed;
      if (!counted) continue;
      ++possible;
      rows_found += std::min(1.0, rows / static_cast<double>(example.rows));
      sum += static_cast<double>(bound.value + 1) / static_cast<double>(*best);
    }
  }
  EXPECT_GT(possible, 700);
  EXPECT_GT(sum / possible, 0.8);  // and most are not much longer
  EXPECT_GT(rows_found / possible, 0.98);
}

// The bound is that of the linear program over all chains there are, one by one.
TEST(ColumnGeneration, BoundsAreThoseOfAllChains) {
  int looked_at = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Example example = random_example(seed);
    const Exhaustive all(example);
    const std::optional<int64_t> best = all.run();
    if (!best || all.num_chains() > 2000) continue;
    ++looked_at;
    const Searched searched = search(example, true);
    (void)searched.columns->generate({*best}, {});
    const Nanoseconds bound = searched.columns->bound({*best}, Closeness::kClose, {.closer = 0});
    const auto rows = static_cast<double>(example.rows);
    EXPECT_LT(all.rows_in_parts(bound.value), rows * (1 + 1e-6)) << seed;
    EXPECT_GE(all.rows_in_parts(bound.value + 1), rows * (1 - 1e-5)) << seed;
  }
  EXPECT_GT(looked_at, 150);
}

// Of one pipeline, where devices cost nothing and are counted: pools in any order are found as all
// chains one by one are, and are never worse than each pool once (plan_pipeline).
TEST(PricedChains, OnePipelineInAnyOrderOfPools) {
  int shorter = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const Example example = random_example(seed);
    const Exhaustive all(example);
    for (size_t c = 0; c < example.choices.size(); ++c) {
      PipelineRequest request = example.request;
      request.microbatches = {example.choices[c]};
      const PricedChains chains(request, true);
      const PricedChains::Prices nothing(request.pools.size(), 0);
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
      const auto old = plan_pipeline(request);
      if (!std::holds_alternative<PipelinePlans>(old)) continue;
      const int64_t once = std::get<PipelinePlans>(old).plans[0].predicted.value;
      ASSERT_TRUE(best) << seed;
      EXPECT_LE(*best, once) << seed;
      shorter += *best < once;
    }
  }
  EXPECT_GT(shorter, 5);
}

}  // namespace
}  // namespace medley
