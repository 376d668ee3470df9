#include "medley/schedule/timer.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> begins(const std::vector<TimeSpan>& spans) {
  std::vector<int64_t> times;
  for (const TimeSpan& span : spans) times.push_back(span.begin.value);
  return times;
}

// Two stages of 1 + 2, a transfer of 1, [2, 1] in flight:
//
//   s0   F0 F1    .  B0--- F2    ...
//   0>1     0- 1-
//   s1         F0 B0--- F1 B1---
TEST(Timer, FollowsCallsAndMessages) {
  const PipelineTimes times = equal_microbatches({{{{1}, {2}}, {{1}, {2}}}, {{{1}, {1}, {}}}}, 3);
  const Timing timing = time_calls(order_calls({2, 1}, 3), times);
  EXPECT_THAT(begins(timing.calls[0]), ElementsAre(0, 1, 6, 8, 9, 14));
  EXPECT_THAT(begins(timing.calls[1]), ElementsAre(2, 3, 5, 6, 10, 11));
  EXPECT_THAT(begins(timing.activations[0]), ElementsAre(1, 2, 9));
  EXPECT_THAT(begins(timing.gradients[0]), ElementsAre(5, 8, 13));
  EXPECT_EQ(timing.finish, Nanoseconds{16});
}

TEST(Timer, CountsBusyAndIdle) {
  const PipelineTimes times = equal_microbatches({{{{1}, {2}}, {{1}, {1}}}, {{{0}, {0}, {}}}}, 2);
  const Timing timing = time_calls(order_calls({2, 1}, 2), times);
  // s0  F0 F1 .  B0--- B1---     7
  // s1     F0 B0 F1 B1
  EXPECT_EQ(timing.finish, Nanoseconds{7});
  EXPECT_THAT(timing.busy, ElementsAre(Nanoseconds{6}, Nanoseconds{4}));
  EXPECT_THAT(timing.idle, ElementsAre(Nanoseconds{1}, Nanoseconds{3}));
  EXPECT_DOUBLE_EQ(timing.bubble(), 4.0 / 14);
}

// Messages queue for the link, not for each other's latency.
TEST(Timer, LatencyDoesNotOccupyTheLink) {
  const PipelineTimes times = equal_microbatches({{{{1}, {1}}, {{1}, {1}}}, {{{3}, {0}, {10}}}}, 2);
  const Timing timing = time_calls(order_calls({2, 2}, 2), times);
  EXPECT_THAT(begins(timing.activations[0]), ElementsAre(1, 4));
  EXPECT_THAT(begins(timing.calls[1]), ElementsAre(14, 17, 18, 19));
}

// The small micro-batch in the middle takes half of everything.
TEST(Timer, SizesOfMicroBatchesHaveTheirOwnTimes) {
  const MicrobatchTimes whole = {{{{2}, {4}}, {{2}, {4}}}, {{{2}, {2}, {}}}};
  const MicrobatchTimes half = {{{{1}, {2}}, {{1}, {2}}}, {{{1}, {1}, {}}}};
  const Timing timing = time_calls(order_calls({3, 3}, 3), {{whole, half}, {0, 1, 0}});
  EXPECT_THAT(begins(timing.calls[0]), ElementsAre(0, 2, 3, 15, 19, 21));
  EXPECT_THAT(begins(timing.activations[0]), ElementsAre(2, 4, 5));
  EXPECT_THAT(begins(timing.calls[1]), ElementsAre(4, 6, 7, 9, 13, 15));
  EXPECT_EQ(timing.finish, Nanoseconds{25});
}

// With one slot, F2 waits until the next stage has read message 1.
TEST(Timer, ACallWaitsForASlot) {
  const PipelineTimes times = equal_microbatches({{{{1}, {1}}, {{5}, {1}}}, {{{0}, {0}, {}}}}, 3);
  const PipelineOrder order = order_calls({3, 3}, 3);
  EXPECT_THAT(begins(time_calls(order, times).calls[0]), ElementsAre(0, 1, 2, 17, 18, 19));
  EXPECT_THAT(begins(time_calls(order, times, {1}).calls[0]), ElementsAre(0, 1, 6, 17, 18, 19));
}

// Computes the same times differently: everything starts at 0, and jobs that are too early are
// delayed until none is. Stages and links are ordered lists of jobs.
struct Job {
  std::vector<size_t> after;  // jobs that must end before
  int64_t time, latency = 0;
  int64_t begin = 0;
};

int64_t finish_by_relaxation(const PipelineOrder& order, const PipelineTimes& times) {
  std::vector<Job> jobs;
  // [stage, call] -> the job of the call, and of the message that it sends.
  std::map<std::tuple<size_t, bool, int>, size_t> calls, messages;
  for (size_t stage = 0; stage < order.size(); ++stage) {
    size_t before = SIZE_MAX, sent[2] = {SIZE_MAX, SIZE_MAX};
    for (const PipelineCall& call : order[stage]) {
      const bool on = call.function == PipelineFunction::kForward;
      const MicrobatchTimes& size = times.sizes[at(times.size_of[at(call.microbatch)])];
      const StageTimes& own = size.stages[stage];
      Job job{{}, (on ? own.forward : own.backward).value};
      if (before != SIZE_MAX) job.after.push_back(before);
      calls[{stage, on, call.microbatch}] = before = jobs.size();
      jobs.push_back(job);
      if (on ? stage + 1 == order.size() : stage == 0) continue;
      const BoundaryTimes& boundary = size.boundaries[on ? stage : stage - 1];
      Job message{
          {before}, (on ? boundary.forward : boundary.backward).value, boundary.latency.value};
      if (sent[on] != SIZE_MAX) message.after.push_back(sent[on]);
      messages[{stage, on, call.microbatch}] = sent[on] = jobs.size();
      jobs.push_back(message);
    }
  }
  std::map<size_t, size_t> reads;  // call -> message
  for (const auto& [key, job] : calls) {
    const auto& [stage, on, m] = key;
    if (on ? stage == 0 : stage + 1 == order.size()) continue;
    reads[job] = messages.at({on ? stage - 1 : stage + 1, on, m});
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t j = 0; j < jobs.size(); ++j) {
      int64_t begin = 0;
      for (const size_t i : jobs[j].after) begin = std::max(begin, jobs[i].begin + jobs[i].time);
      if (reads.count(j)) {
        const Job& read = jobs[reads[j]];
        begin = std::max(begin, read.begin + read.time + read.latency);
      }
      changed |= begin != jobs[j].begin;
      jobs[j].begin = begin;
    }
  }
  int64_t finish = 0;
  for (const auto& [key, job] : calls) finish = std::max(finish, jobs[job].begin + jobs[job].time);
  return finish;
}

TEST(Timer, AgreesWithRelaxation) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PipelineTimes times = random_request(seed, 5, 6).times;
    verify(times);
    const PipelineOrder order =
        random_order(seed, static_cast<int>(times.num_stages()), times.num_microbatches());
    const Timing timing = time_calls(order, times);
    EXPECT_EQ(timing.finish.value, finish_by_relaxation(order, times)) << seed;
    for (size_t stage = 0; stage < order.size(); ++stage)
      EXPECT_EQ(timing.busy[stage] + timing.idle[stage], timing.finish);
  }
}

// For any executable order and any times the timer ends, and not before a lower bound of all
// orders.
TEST(Timer, RandomOrdersFinish) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const ScheduleRequest request = random_request(seed, 6, 12);
    const int stages = static_cast<int>(request.times.num_stages());
    const PipelineOrder order = random_order(seed, stages, request.times.num_microbatches());
    verify(order, request.times.num_microbatches(), {peak_in_flight(order), {}});
    const Timing timing = time_calls(order, request.times);
    int64_t all = 0;
    for (const Nanoseconds busy : timing.busy) all = std::max(all, busy.value);
    EXPECT_GE(timing.finish.value, all);
  }
}

}  // namespace
}  // namespace medley
