#include "medley/schedule/schedules.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "medley/base/error.h"
#include "medley/schedule/deferred_weights.h"
#include "medley/schedule/h1f1b.h"
#include "medley/testing/draw.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Schedules, AreFoundByName) {
  for (const Schedule& schedule : schedules()) EXPECT_EQ(&find_schedule(schedule.name), &schedule);
  try {
    find_schedule("zigzag");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    EXPECT_THAT(error.what(), StartsWith("schedule: found zigzag, expected one of 1f1b, "));
    for (const Schedule& schedule : schedules())
      EXPECT_THAT(error.what(), HasSubstr(std::string(schedule.name)));
  }
}

// For any times, limits and pools, each schedule makes every call once, ends, fits in memory, and
// agrees with the timer.
TEST(Schedules, CanBeExecutedWithinMemory) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const ScheduleRequest request = random_request(seed, 6, 20);
    const int microbatches = request.times.num_microbatches();
    for (const Schedule& schedule : schedules()) {
      SCOPED_TRACE(std::string(schedule.name) + " " + std::to_string(seed));
      const PipelineOrder order = schedule.order(request);
      const std::vector<int> slots = message_slots(peak_in_flight(order));
      verify(order, microbatches, {request.max_in_flight, slots});
      EXPECT_LE(time_calls(order, request.times).finish,
                time_calls(order, request.times, slots).finish);
    }
  }
}

struct Drawing {
  std::string title, found, expected, schedule;
};

PipelineOrder with_deferred_weights(const PipelineOrder& order, const PipelineTimes& times) {
  std::vector<int> most(order.size(), times.num_microbatches());
  most[0] = 0;
  const DeferredWeights late =
      deferred_weights(times, peak_in_flight(order), most, std::vector<Nanoseconds>(order.size()));
  return with_deferred_weights(order, late.counts);
}

// Returns the drawings of a file, each below its title line.
std::vector<Drawing> drawings(const std::filesystem::path& path) {
  static const std::regex kTitle(
      R"(^(/?/? *)(([\w-]+): (\d+) stages, (\d+) micro-batches, forward (\d+), backward (\d+), transfer (\d+)(, room for (\d+))?(, weights (\d+))?)$)");
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::vector<Drawing> all;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch title;
    if (!std::regex_match(lines[i], title, kTitle)) continue;
    const auto number = [&](int group) { return std::stoi(title[at(group)]); };
    const auto stages = at(number(4));
    MicrobatchTimes times;
    const bool late = title[11].matched;
    times.stages.assign(stages, {{number(6)}, {number(7)}, {late ? number(12) : 0}});
    times.boundaries.assign(stages - 1, {{number(8)}, {number(8)}, {}});
    ScheduleRequest request{equal_microbatches(std::move(times), number(5)), {}, {}};
    if (title[9].matched) request.max_in_flight.assign(stages, number(10));
    PipelineOrder order = find_schedule(title[3].str()).order(request);
    if (late) order = with_deferred_weights(order, request.times);
    Drawing drawing{title[2], "", draw(order, time_calls(order, request.times), {1}), title[3]};
    const std::string margin = title[1];
    const std::regex picture("^(s\\d|\\d[<>]\\d) .*");
    for (size_t j = i + 1; j < lines.size() && lines[j].size() > margin.size(); ++j) {
      const std::string line = lines[j].substr(margin.size());
      if (!std::regex_match(line, picture)) break;
      drawing.found += line + '\n';
    }
    all.push_back(std::move(drawing));
  }
  return all;
}

// Every schedule is drawn in a header of this folder; drawings there and in the documentation match
// its order.
TEST(Schedules, AreAsDrawn) {
  std::set<std::string> drawn;
  for (const auto& entry : std::filesystem::directory_iterator("medley/schedule")) {
    if (entry.path().extension() != ".h") continue;
    for (const Drawing& drawing : drawings(entry.path())) {
      EXPECT_EQ(drawing.found, drawing.expected) << entry.path() << ": " << drawing.title;
      drawn.insert(drawing.schedule);
    }
  }
  for (const Schedule& schedule : schedules())
    EXPECT_EQ(drawn.count(std::string(schedule.name)), 1) << schedule.name;
  for (const char* page : {"docs/concepts/schedules.md", "docs/howto/add_a_schedule.md"})
    for (const Drawing& drawing : drawings(page))
      EXPECT_EQ(drawing.found, drawing.expected) << page << ": " << drawing.title;
}

}  // namespace
}  // namespace medley
