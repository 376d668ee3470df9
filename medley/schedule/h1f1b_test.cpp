#include "medley/schedule/h1f1b.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "medley/base/error.h"
#include "medley/schedule/counts.h"
#include "medley/testing/formula.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr int kStageTime = 3'000'000;  // one unit: a third forward, the rest backward

ScheduleRequest equal_stages(const std::vector<double>& transfers, int microbatches = 64) {
  MicrobatchTimes times;
  times.stages.assign(transfers.size() + 1, {{kStageTime / 3}, {kStageTime / 3 * 2}});
  for (const double c : transfers) {
    const Nanoseconds time{static_cast<int64_t>(c * kStageTime + 0.5)};
    times.boundaries.push_back({time, time, {}});
  }
  return {equal_microbatches(std::move(times), microbatches), {}, {}};
}

double finish(const ScheduleRequest& request, const std::vector<int>& counts) {
  const PipelineOrder order = order_calls(counts, request.times.num_microbatches());
  return static_cast<double>(time_calls(order, request.times).finish.value) / kStageTime;
}

struct Row {
  std::vector<double> transfers;
  double formula, one_f_one_b, eager, published, ideal;
};

// Equal stages, F:B = 1:2, 64 micro-batches: results of another simulator, of the facts on HARP.
TEST(H1f1b, TableOfEqualStages) {
  const std::vector<Row> rows = {
      {{0.05}, 65.1, 68.2, 65.1, 68.2, 65.1},
      {{0.3}, 65.6, 84.2, 65.6, 65.6, 65.6},
      {{0.5}, 66.0, 97.0, 66.0, 66.0, 66.0},
      {{0.8}, 66.6, 116.2, 79.2, 66.6, 66.6},
      {{1.0}, 67.0, 129.0, 88.0, 67.0, 67.0},
      {{.02, .6, .02}, 68.28, 105.52, 71.77, 69.52, 68.28},
      {{.02, .3, .02}, 67.68, 86.32, 67.68, 68.92, 67.68},
      {{.01, .01, .01, .45, .01, .01, .01}, 72.02, 99.08, 72.02, 72.96, 72.02},
      {{.01, .01, .9, .01, .01}, 70.88, 124.94, 87.24, 71.72, 72.04},
  };
  for (const Row& row : rows) {
    const ScheduleRequest request = equal_stages(row.transfers);
    const int stages = static_cast<int>(row.transfers.size()) + 1;
    SCOPED_TRACE(::testing::PrintToString(row.transfers));
    const Nanoseconds formula =
        estimate_pipeline(PipelineFormula::kPaper, request.times.sizes[0], 64);
    EXPECT_NEAR(static_cast<double>(formula.value) / kStageTime, row.formula, 0.005001);
    EXPECT_NEAR(finish(request, one_f_one_b(stages, 64)), row.one_f_one_b, 0.005001);
    EXPECT_NEAR(finish(request, eager_one_f_one_b(stages, 64)), row.eager, 0.005001);
    EXPECT_NEAR(finish(request, published_in_flight(request)), row.published, 0.005001);
    EXPECT_NEAR(finish(request, ideal_in_flight(request)), row.ideal, 0.005001);
    const double best = std::min({row.one_f_one_b, row.eager, row.published, row.ideal});
    EXPECT_LE(static_cast<double>(h1f1b(request).finish.value) / kStageTime, best + 0.005);
  }
}

TEST(H1f1b, CountsOfTheTable) {
  EXPECT_THAT(eager_one_f_one_b(4, 64), ElementsAre(7, 5, 3, 1));
  const ScheduleRequest slow = equal_stages({.02, .6, .02});
  EXPECT_THAT(published_in_flight(slow), ElementsAre(6, 5, 2, 1));
  EXPECT_THAT(ideal_in_flight(slow), ElementsAre(8, 6, 3, 1));
  const ScheduleRequest middling = equal_stages({.02, .3, .02});
  EXPECT_THAT(published_in_flight(middling), ElementsAre(5, 4, 2, 1));
  EXPECT_THAT(ideal_in_flight(middling), ElementsAre(7, 5, 3, 1));
  const ScheduleRequest eight = equal_stages({.01, .01, .01, .45, .01, .01, .01});
  EXPECT_EQ(published_in_flight(eight)[0], 9);
  EXPECT_EQ(ideal_in_flight(eight)[0], 15);
}

// The examples in HARP's code. For the last two it gives no transfers, but only one range of ratios
// fits these counts. It is at least a half on both boundaries; then a tenth to a half between
// pools, with seven stages in the first one.
TEST(PublishedCounts, ExamplesOfHarpsCode) {
  EXPECT_THAT(published_in_flight(equal_stages({0.345})), ElementsAre(3, 1));
  EXPECT_THAT(published_in_flight(equal_stages({0.5, 0.9})), ElementsAre(7, 4, 1));
  ScheduleRequest nine = equal_stages({.3, .3, .3, .3, .3, .3, .3, .3});
  nine.pools = {0, 0, 0, 0, 0, 0, 0, 1, 2};
  EXPECT_THAT(published_in_flight(nine), ElementsAre(11, 10, 9, 8, 7, 6, 5, 3, 1));
}

TEST(PublishedGrowth, ThresholdsAreATenthAndAHalf) {
  const auto growth = [](int64_t c) { return published_growth({c}, {100}, false); };
  EXPECT_THAT((std::vector{growth(0), growth(9), growth(10), growth(49), growth(50), growth(100)}),
              ElementsAre(1, 1, 2, 2, 3, 3));
  EXPECT_EQ(published_growth({90}, {100}, true), 1);
}

TEST(IdealGrowth, IsOnePlusTheRoundTripRoundedUp) {
  const auto growth = [](int64_t round_trip) { return ideal_growth({round_trip}, {100}); };
  EXPECT_THAT(
      (std::vector{growth(0), growth(1), growth(100), growth(101), growth(200), growth(330)}),
      ElementsAre(1, 2, 2, 3, 3, 5));
}

TEST(H1f1b, TakesTheFewestInFlightOfEquallyFast) {
  const InFlight found = h1f1b(equal_stages({0.0, 0.0}));
  EXPECT_THAT(found.counts, ElementsAre(3, 2, 1));
}

// Memory for two: clipped at the limits, the ideal counts are slower by half.
TEST(H1f1b, ShortMemoryIsSharedOutByThePeriod) {
  ScheduleRequest request = equal_stages({1.0, 0.0});
  request.max_in_flight = {2, 2, 2};
  const InFlight found = h1f1b(request);
  EXPECT_THAT(found.counts, ElementsAre(2, 1, 1));
  EXPECT_EQ(found.rule, "memory");
  EXPECT_GT(finish(request, capped(ideal_in_flight(request), request.max_in_flight)),
            1.5 * finish(request, found.counts));
}

TEST(H1f1b, NeverSlowerThan1f1bOrEagerInTheSameMemory) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const ScheduleRequest request = random_request(seed, 7, 40);
    const int stages = static_cast<int>(request.times.num_stages());
    const int microbatches = request.times.num_microbatches();
    for (const int max_timings : {0, 20}) {
      const InFlight found = h1f1b(request, max_timings);
      EXPECT_EQ(found.counts, capped(found.counts, request.max_in_flight)) << seed;
      for (const std::vector<int>& rule :
           {one_f_one_b(stages, microbatches), eager_one_f_one_b(stages, microbatches)}) {
        const PipelineOrder order = order_calls(capped(rule, request.max_in_flight), microbatches);
        EXPECT_LE(found.finish, time_calls(order, request.times).finish) << seed;
      }
    }
  }
}

// Returns a random request, always with limits.
ScheduleRequest sample(uint64_t seed, int max_stages, int max_microbatches) {
  ScheduleRequest request = random_request(seed, max_stages, max_microbatches);
  const int microbatches = request.times.num_microbatches();
  request.max_in_flight.resize(request.times.num_stages(), microbatches);
  for (int& limit : request.max_in_flight) limit = std::min(limit, microbatches);
  return request;
}

// Calls `visit` for every order in which each stage takes micro-batches in sequence.
void each_order(const std::vector<int>& limits,
                int microbatches,
                PipelineOrder& order,
                const std::function<void(const PipelineOrder&)>& visit) {
  if (order.size() == limits.size()) return visit(order);
  const int limit = limits[order.size()];
  order.emplace_back();
  const std::function<void(int, int)> extend = [&](int forwards, int backwards) {
    if (backwards == microbatches) return each_order(limits, microbatches, order, visit);
    const size_t stage = order.size() - 1;
    if (forwards < microbatches && forwards - backwards < limit) {
      order[stage].push_back(forward(forwards));
      extend(forwards + 1, backwards);
      order[stage].pop_back();
    }
    if (backwards < forwards) {
      order[stage].push_back(backward(backwards));
      extend(forwards, backwards + 1);
      order[stage].pop_back();
    }
  };
  extend(0, 0);
  order.pop_back();
}

// Compares small pipelines with the best of all orders within memory.
TEST(H1f1b, AgainstEveryOrderOfSmallPipelines) {
  int cases = 0, best = 0;
  double worst = 1;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const ScheduleRequest request = sample(seed, 3, 4);
    if (request.times.num_stages() < 2 || request.times.num_microbatches() < 3) continue;
    Nanoseconds least{INT64_MAX};
    PipelineOrder order;
    each_order(request.max_in_flight,
               request.times.num_microbatches(),
               order,
               [&](const PipelineOrder& one) {
                 try {
                   least = std::min(least, time_calls(one, request.times).finish);
                 } catch (const Error&) {  // a deadlock
                 }
               });
    const InFlight found = h1f1b(request);
    EXPECT_GE(found.finish, least);
    EXPECT_LE(lower_bound(request.times), least);
    ++cases;
    best += found.finish == least;
    worst = std::max(worst, found.finish / least);
  }
  EXPECT_EQ(cases, 332);
  EXPECT_GE(best, 327);
  EXPECT_LT(worst, 1.19);
}

// Compares larger pipelines with the best of all counts within memory.
TEST(H1f1b, AgainstAllCounts) {
  int cases = 0, best = 0;
  double worst = 1, sum = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const ScheduleRequest request = sample(seed, 4, 12);
    const int microbatches = request.times.num_microbatches();
    if (request.times.num_stages() < 2 || microbatches < 6) continue;
    Nanoseconds least{INT64_MAX};
    for (const std::vector<int>& counts : all_counts(request.max_in_flight))
      least = std::min(least, time_calls(order_calls(counts, microbatches), request.times).finish);
    const double ratio = h1f1b(request).finish / least;
    ++cases;
    best += ratio == 1;
    sum += ratio;
    worst = std::max(worst, ratio);
  }
  EXPECT_EQ(cases, 121);
  EXPECT_GE(best, 116);
  EXPECT_LT(sum / cases, 1.0013);
  EXPECT_LT(worst, 1.075);
}

}  // namespace
}  // namespace medley
