#include "medley/schedule/call_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>

#include "medley/base/error.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string fault_of(const PipelineOrder& order, int microbatches, const OrderLimits& limits = {}) {
  return message_of([&] { verify(order, microbatches, limits); });
}

TEST(OrderCalls, WarmsUpAlternatesAndCoolsDown) {
  const PipelineOrder order = order_calls({3, 2, 1}, 4);
  std::vector<std::string> texts;
  for (const StageOrder& calls : order) texts.push_back(to_string(calls));
  EXPECT_THAT(texts,
              ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3",  //
                          "F0 F1 B0 F2 B1 F3 B2 B3",  //
                          "F0 B0 F1 B1 F2 B2 F3 B3"));
  EXPECT_THAT(peak_in_flight(order), ElementsAre(3, 2, 1));
}

// The orders drawn in the header.
TEST(OrderCalls, GradientsOfWeightsComeAsLateAsTheyMay) {
  std::vector<std::string> texts;
  for (const StageOrder& calls : with_deferred_weights(order_calls({3, 2, 1}, 4), {0, 1, 2}))
    texts.push_back(to_string(calls));
  EXPECT_THAT(texts,
              ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3",
                          "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3",
                          "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"));
  EXPECT_EQ(to_string(with_deferred_weights(order_calls({1}, 2), {9})[0]), "F0 B0 F1 B1 W0 W1");
}

TEST(OrderCalls, InterleavedMicrobatchesAreOneEntry) {
  const StageOrder order = order_interleaved(2, 3);
  EXPECT_EQ(to_string(order), "F0-1 B0-1 F2 B2");
  EXPECT_EQ(fault_of({order}, 3), "");
  EXPECT_THAT(peak_in_flight({order}), ElementsAre(2));
  EXPECT_THAT(fault_of({order}, 4), HasSubstr("stage 0: F3 is missing"));
  EXPECT_THAT(fault_of({order}, 3, {{1}, {}}),
              HasSubstr("F1 makes 2 micro-batches in flight, there is memory for 1"));
  EXPECT_THAT(fault_of({order, order_calls({2}, 3)[0]}, 3),
              HasSubstr("stage 0: F0-1 has 2 at once"));
}

TEST(OrderCalls, MoreInFlightThanMicroBatchesIsAllOfThem) {
  EXPECT_EQ(to_string(order_calls({7, 2}, 2)[0]), "F0 F1 B0 B1");
}

TEST(OrderCalls, CountsThatGrowAreRefused) {
  EXPECT_EQ(message_of([] {
              order_calls({2, 3}, 4);
            }),
            "in_flight: stage 1: found 3, expected no more than the stage before");
  EXPECT_EQ(message_of([] {
              order_calls({2, 0}, 4);
            }),
            "in_flight: stage 1: found 0, expected at least 1");
}

TEST(Capped, HoldsCountsToLimitsAndToTheStageBefore) {
  EXPECT_THAT(capped({7, 5, 3, 1}, {9, 2, 9, 9}), ElementsAre(7, 2, 2, 1));
  EXPECT_THAT(capped({3, 1}, {}), ElementsAre(3, 1));
  EXPECT_EQ(message_of([] {
              capped({3, 1}, {4, 0});
            }),
            "stage 1: found memory for 0 micro-batches, expected at least 1");
}

TEST(Verify, NamesTheCallThatIsWrong) {
  PipelineOrder order = order_calls({2, 1}, 2);
  EXPECT_EQ(fault_of(order, 2), "");
  EXPECT_THAT(fault_of(order, 3), HasSubstr("stage 0: F2 is missing"));
  EXPECT_THAT(fault_of(order, 1), HasSubstr("stage 0: F1 of 1 micro-batches"));
  EXPECT_THAT(fault_of(order, 2, {{1, 1}, {}}),
              HasSubstr("stage 0: F1 makes 2 micro-batches in flight, there is memory for 1"));
  order[1] = {forward(0), backward(0), forward(1)};
  EXPECT_THAT(fault_of(order, 2), HasSubstr("stage 1: B1 is missing"));
  order[1] = {forward(0), backward(0), forward(0), backward(1)};
  EXPECT_THAT(fault_of(order, 2), HasSubstr("stage 1: F0 is called twice"));
  order[1] = {forward(0), backward(1), backward(0), forward(1)};
  EXPECT_THAT(fault_of(order, 2), HasSubstr("stage 1: B1 comes before F1"));
  order[1] = {forward(0), backward(0), weights(0), forward(1), backward(1), weights(1)};
  EXPECT_EQ(fault_of(order, 2), "");
  order[1].pop_back();
  EXPECT_THAT(fault_of(order, 2), HasSubstr("stage 1: W1 is missing"));
  order[1] = {forward(0), weights(0), backward(0), forward(1), backward(1), weights(1)};
  EXPECT_THAT(fault_of(order, 2), HasSubstr("stage 1: W0 comes before B0"));
}

// order_calls() rejects this: the second stage needs F1, the first waits for B0.
TEST(Verify, FindsADeadlockBetweenStages) {
  const PipelineOrder order = {{forward(0), backward(0), forward(1), backward(1)},
                               {forward(0), forward(1), backward(0), backward(1)}};
  EXPECT_EQ(fault_of(order, 2),
            "schedule: deadlock; stage 0 cannot start B0, which waits for B0 of stage 1; "
            "stage 1 cannot start F1, which waits for F1 of stage 0");
}

// The case drawn in the header, with slots between the two stages as only difference.
TEST(Verify, FindsADeadlockOfSlots) {
  const PipelineOrder order = order_calls({4, 1}, 6);
  EXPECT_THAT(fault_of(order, 6, {{}, {1}}),
              HasSubstr("deadlock; stage 0 cannot start F3, which waits for one of the 1 slots to "
                        "stage 1; stage 1 cannot start B1, which waits for one of the 1 slots to "
                        "stage 0"));
  EXPECT_EQ(fault_of(order, 6, {{}, {2}}), "");
}

// As in the header: (d - 1) / 2 slots stop both stages, one more does not.
TEST(Verify, SlotsThatAreTooFew) {
  for (int later = 1; later <= 3; ++later)
    for (int growth = 0; growth <= 8; ++growth)
      for (int slots = 1; slots <= 5; ++slots)
        EXPECT_EQ(fault_of(order_calls({later + growth, later}, 30), 30, {{}, {slots}}).empty(),
                  2 * slots > growth - 1)
            << later << " + " << growth << ", " << slots;
}

// The counts of any schedule can be executed with their slots.
TEST(Verify, CountsThatDoNotGrowNeverDeadlock) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const int microbatches = static_cast<int>(1 + random() % 20);
    std::vector<int> counts(1 + random() % 6);
    for (int& count : counts) count = std::min(microbatches, static_cast<int>(1 + random() % 12));
    std::sort(counts.rbegin(), counts.rend());
    std::vector<int> late(counts.size());
    for (int& count : late) count = static_cast<int>(random() % 5);
    const PipelineOrder order = with_deferred_weights(order_calls(counts, microbatches), late);
    EXPECT_EQ(fault_of(order, microbatches, {counts, message_slots(counts)}), "") << seed;
    EXPECT_EQ(peak_in_flight(order), counts);
  }
}

// Returns whether waits have a cycle, which prevents execution: removes calls without remaining
// waits until none is left or none can go.
bool has_cycle(const PipelineOrder& order) {
  std::vector<std::pair<size_t, PipelineCall>> left;
  for (size_t stage = 0; stage < order.size(); ++stage)
    for (const PipelineCall& call : order[stage]) left.emplace_back(stage, call);
  const auto is_left = [&](size_t stage, PipelineCall call) {
    return std::find(left.begin(), left.end(), std::pair(stage, call)) != left.end();
  };
  const auto waits = [&](const std::pair<size_t, PipelineCall>& one) {
    const auto& [stage, call] = one;
    const StageOrder& calls = order[stage];
    const auto at = std::find(calls.begin(), calls.end(), call);
    if (at != calls.begin() && is_left(stage, *(at - 1))) return true;
    if (call.function == PipelineFunction::kForward) return stage > 0 && is_left(stage - 1, call);
    return stage + 1 < order.size() && is_left(stage + 1, call);
  };
  for (size_t before = left.size() + 1; left.size() < before;) {
    before = left.size();
    const auto kept = std::stable_partition(left.begin(), left.end(), waits);
    left.erase(kept, left.end());
  }
  return !left.empty();
}

// Executable orders pass. With some calls of a stage swapped, the result equals that of the search
// for a cycle.
TEST(Verify, AgreesWithTheSearchForACycle) {
  int deadlocks = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    std::mt19937_64 random(seed);
    const int stages = static_cast<int>(1 + random() % 4);
    const int microbatches = static_cast<int>(1 + random() % 4);
    PipelineOrder order = random_order(seed, stages, microbatches);
    ASSERT_EQ(fault_of(order, microbatches), "") << seed;
    for (int swaps = 0; swaps < 3; ++swaps) {
      StageOrder& calls = order[random() % order.size()];
      const size_t one = random() % calls.size(), other = random() % calls.size();
      std::swap(calls[one], calls[other]);
    }
    const std::string fault = fault_of(order, microbatches);
    if (fault.find("comes before") != std::string::npos) continue;
    EXPECT_EQ(!fault.empty(), has_cycle(order)) << seed << ": " << fault;
    deadlocks += !fault.empty();
  }
  EXPECT_GT(deadlocks, 20);
}

}  // namespace
}  // namespace medley
