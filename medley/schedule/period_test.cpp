#include "medley/schedule/period.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "medley/schedule/h1f1b.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

// Returns P(N) of the header in ns, rounded up. Requires: counts do not grow along the pipeline.
Nanoseconds steady_period(const std::vector<int>& in_flight, const PipelineTimes& times) {
  int64_t period = 0;
  for (size_t i = 0; i < in_flight.size(); ++i) {
    int64_t loop = 0;
    for (size_t k = i; k < in_flight.size(); ++k) {
      int64_t stage = 0, round_trip = 0;
      for (const MicrobatchTimes& size : times.sizes) {
        stage = std::max(stage, (size.stages[k].forward + size.stages[k].backward).value);
        if (k == i) continue;
        const BoundaryTimes& boundary = size.boundaries[k - 1];
        round_trip = std::max(round_trip, boundary.round_trip().value);
        period = std::max({period, boundary.forward.value, boundary.backward.value});
      }
      loop += stage + round_trip;
      const int64_t held = in_flight[i] - in_flight[k] + 1;
      period = std::max(period, (loop + held - 1) / held);
    }
  }
  return {period};
}

// Two stages of 3, a transfer of 1: 1F1B exposes it twice per two micro-batches, (3 + 3 + 2) / 2.
TEST(SteadyPeriod, TwoStagesHaveTheExactPeriod) {
  const PipelineTimes times = equal_microbatches({{{{1}, {2}}, {{1}, {2}}}, {{{1}, {1}, {}}}}, 9);
  EXPECT_EQ(steady_period({1, 1}, times), Nanoseconds{8});
  EXPECT_EQ(steady_period({2, 1}, times), Nanoseconds{4});
  EXPECT_EQ(steady_period({3, 1}, times), Nanoseconds{3});
}

// The steady-state period equals the timer's exactly. 2520 is a multiple of every possible number
// of micro-batches in a cycle.
TEST(SteadyPeriod, IsWhatTheTimerShows) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const MicrobatchTimes one = random_request(seed, 6, 1).times.sizes[0];
    std::mt19937_64 random(seed);
    std::vector<int> counts(one.stages.size());
    for (int& count : counts) count = static_cast<int>(1 + random() % 10);
    std::sort(counts.rbegin(), counts.rend());
    const auto finish = [&](int microbatches) {
      return time_calls(order_calls(counts, microbatches), equal_microbatches(one, microbatches))
          .finish.value;
    };
    const int64_t more = finish(2 * 2520) - finish(2520);
    EXPECT_EQ(steady_period(counts, equal_microbatches(one, 1)).value, (more + 2519) / 2520)
        << seed;
  }
}

// All other counts have a longer period, or the same with at least as many on every stage.
TEST(CountsWithin, AreTheLeastOfTheShortestPeriod) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PipelineTimes times = random_request(seed, 4, 3).times;
    std::mt19937_64 random(seed);
    std::vector<int> limits(times.num_stages());
    for (int& limit : limits) limit = static_cast<int>(1 + random() % 7);
    const std::vector<int> found = counts_within(limits, times);
    const Nanoseconds period = steady_period(found, times);
    for (const std::vector<int>& other : all_counts(limits)) {
      EXPECT_LE(period, steady_period(other, times)) << seed;
      if (steady_period(other, times) > std::max(period, Nanoseconds{1})) continue;
      for (size_t i = 0; i < other.size(); ++i) EXPECT_LE(found[i], other[i]) << seed;
    }
  }
}

// Equal stages, unlimited memory: the growth of H-1F1B.
TEST(CountsForPeriod, EqualStagesGiveTheIdealCounts) {
  for (int64_t c = 0; c <= 90; ++c) {
    const ScheduleRequest request{equal_microbatches({{{{30}, {60}}, {{30}, {60}}, {{30}, {60}}},
                                                      {{{c}, {c}, {}}, {{90 - c}, {90 - c}, {}}}},
                                                     50),
                                  {},
                                  {}};
    EXPECT_EQ(counts_for_period({90}, request.times), ideal_in_flight(request)) << c;
  }
}

// Memory for two, a slow link after the first stage. The ideal counts, clipped at the limits, leave
// the link one micro-batch at a time: the second stage has both.
TEST(CountsWithin, LeaveRoomForTheSlowBoundary) {
  const PipelineTimes times = equal_microbatches(
      {{{{2}, {4}}, {{2}, {4}}, {{2}, {4}}}, {{{6}, {6}, {}}, {{0}, {0}, {}}}}, 30);
  EXPECT_THAT(ideal_in_flight({times, {}, {}}), ElementsAre(5, 2, 1));
  EXPECT_THAT(capped({5, 2, 1}, {2, 2, 2}), ElementsAre(2, 2, 1));
  EXPECT_EQ(steady_period({2, 2, 1}, times), Nanoseconds{24});
  EXPECT_THAT(counts_within({2, 2, 2}, times), ElementsAre(2, 1, 1));
  EXPECT_EQ(steady_period({2, 1, 1}, times), Nanoseconds{15});
}

}  // namespace
}  // namespace medley
