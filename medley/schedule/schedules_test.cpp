#include "medley/schedule/schedules.h"
#include "medley/base/at.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "medley/base/error.h"
#include "medley/schedule/deferred_weights.h"
#include "medley/schedule/h1f1b.h"
#include "medley/testing/sample_pipelines.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A line of a drawing: its name, then letters in columns.
class Line {
 public:
  Line(const std::string& name, size_t column)
      : text_(fmt::format("{:<5}", name)), column_(column) {}

  // Draws from column `begin` to column `end`, with one blank after it.
  void add(int64_t begin, int64_t end, const std::string& label) {
    const size_t from = kMargin + at(begin) * column_;
    const size_t to = kMargin + at(end) * column_ - 1;
    if (to <= from) return;
    text_.resize(std::max(text_.size(), to), ' ');
    for (size_t i = from; i < to; ++i) text_[i] = i - from < label.size() ? label[i - from] : '-';
    drawn_ = true;
  }
  bool drawn() const { return drawn_; }
  std::string text() const { return text_.substr(0, text_.find_last_not_of(' ') + 1) + '\n'; }

 private:
  static constexpr size_t kMargin = 5;
  std::string text_;
  size_t column_;
  bool drawn_ = false;
};

// Returns a line per stage, and between two stages a line for each direction of their boundary if
// it takes time. A column has as many characters per `unit` as the longest name.
//
//   s0   F0 F1             B0--- B1---
//   0>1     0- 1-
//   0<1                 0-       1-
//   s1         F0 B0--- F1 B1---
//
// Times are rounded down to units; shorter ones are not drawn. Requires: timing is of this order,
// unit > 0.
std::string draw(const PipelineOrder& order, const Timing& timing, Nanoseconds unit) {
  MEDLEY_CHECK(unit.value > 0);
  MEDLEY_CHECK_EQ(order.size(), timing.calls.size());
  size_t column = 0;
  for (const StageOrder& calls : order)
    for (const PipelineCall& call : calls) column = std::max(column, to_string(call).size() + 1);

  std::string text;
  const auto transfers = [&](const std::string& name,
                             const std::vector<TimeSpan>& spans,
                             const StageOrder& sender,
                             PipelineFunction function) {
    Line line(name, column);
    size_t n = 0;
    for (const PipelineCall& call : sender) {
      if (call.function != function) continue;
      const TimeSpan span = spans[n++];
      line.add(span.begin.value / unit.value,
               span.end.value / unit.value,
               std::to_string(call.microbatch));
    }
    if (line.drawn()) text += line.text();
  };
  for (size_t stage = 0; stage < order.size(); ++stage) {
    Line line(fmt::format("s{}", stage), column);
    for (size_t k = 0; k < order[stage].size(); ++k) {
      const TimeSpan span = timing.calls[stage][k];
      line.add(
          span.begin.value / unit.value, span.end.value / unit.value, to_string(order[stage][k]));
    }
    text += line.text();
    if (stage + 1 == order.size()) break;
    transfers(fmt::format("{}>{}", stage, stage + 1),
              timing.activations[stage],
              order[stage],
              PipelineFunction::kForward);
    transfers(fmt::format("{}<{}", stage, stage + 1),
              timing.gradients[stage],
              order[stage + 1],
              PipelineFunction::kBackward);
  }
  return text;
}

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
