#include "medley/schedule/choice.h"

#include <gmock/gmock.h>

#include <random>

#include "medley/base/at.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> texts(const ScheduleChoice& choice, PipelineSize size) {
  std::vector<std::string> all;
  for (const StageOrder& order : order_of(choice, size)) all.push_back(to_string(order));
  return all;
}

TEST(ScheduleChoice, MeansOneListOfCallsForEachStage) {
  EXPECT_THAT(texts({}, {2, 2}), ElementsAre("F0 F1 B0 B1", "F0 B0 F1 B1"));
  EXPECT_THAT(texts({.schedule = "h1f1b"}, {1, 2}), ElementsAre("F0 B0 F1 B1"));
  EXPECT_THAT(texts({.in_flight = {9, 2}}, {2, 2}), ElementsAre("F0 F1 B0 B1", "F0 F1 B0 B1"));
  EXPECT_THAT(texts({.deferred_weights = {0, 9}}, {2, 2}),
              ElementsAre("F0 F1 B0 B1", "F0 B0 F1 B1 W0 W1"));
  EXPECT_THAT(texts({.schedule = "gpipe", .deferred_weights = {0, 1}}, {2, 2}),
              ElementsAre("F0 F1 B0 B1", "F0 F1 B0 W0 B1 W1"));
  EXPECT_THAT(texts({.interleave = 2}, {1, 3}), ElementsAre("F0-1 B0-1 F2 B2"));
}

// For any fields of the table without a fault, every call occurs once, and the stages never
// deadlock.
TEST(ScheduleChoice, CanBeExecutedWhereItHasNoFault) {
  std::map<std::string_view, int> used;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
    };
    const PipelineSize size{static_cast<int>(draw(1, 4)), static_cast<int>(draw(1, 8))};
    ScheduleChoice choice;
    for (const ScheduleField& field : schedule_fields()) {
      if (draw(0, 2) > 0) continue;
      if (field.number) {
        choice.*field.number = draw(field.least, size.microbatches);
        continue;
      }
      std::vector<int64_t>& counts = choice.*field.counts;
      for (int s = 0; s < size.stages; ++s) counts.push_back(draw(field.least, 4));
      if (draw(0, 1) == 0) std::ranges::sort(counts, std::greater());
      if (draw(0, 1) == 0) std::ranges::sort(counts);
    }
    if (find_fault(choice, size)) continue;
    const PipelineOrder order = order_of(choice, size);
    EXPECT_NO_THROW(verify(order, size.microbatches, {{}, message_slots(peak_in_flight(order))}))
        << seed;
    for (const ScheduleField& field : schedule_fields())
      used[field.key] += is_default(choice, field) ? 0 : 1;
  }
  for (const ScheduleField& field : schedule_fields()) EXPECT_GT(used[field.key], 20) << field.key;
}

}  // namespace
}  // namespace medley
