#include "medley/trace/trace.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

TraceEvent event(Stream stream, const char* name, int64_t start, int64_t duration) {
  return {0, stream, name, "forward", {start}, {duration}, {}};
}

std::vector<int> threads_of_events(const Trace& trace) {
  std::vector<int> threads;
  const json parsed = json::parse(to_chrome_json(trace));
  for (const json& each : parsed["traceEvents"])
    if (each["ph"] == "X") threads.push_back(each["tid"]);
  return threads;
}

TEST(ChromeJson, IsExactlyThis) {
  Trace trace{{"a100 0"}, {event(Stream::kCompute, "forward \"0\"", 1500, 2001)}};
  trace.events[0].args = {{"stage", "0"}};
  EXPECT_EQ(to_chrome_json(trace),
            R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"a100 0"}},
{"ph":"M","name":"thread_name","pid":0,"tid":0,"args":{"name":"compute"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"communication"}},
{"ph":"X","name":"forward \"0\"","cat":"forward","pid":0,"tid":0,"ts":1.500,"dur":2.001,"args":{"stage":"0"}}
]}
)");
}

// Measured events arrive in the order in which threads finish, which is not part of the result.
TEST(ChromeJson, OrderOfEventsIsByTime) {
  const TraceEvent first = event(Stream::kCompute, "a", 1, 2);
  const TraceEvent second = event(Stream::kCompute, "b", 3, 1);
  EXPECT_EQ(to_chrome_json({{"x"}, {first, second}}), to_chrome_json({{"x"}, {second, first}}));
}

// Viewers draw one row per thread and lose events that overlap in it without nesting.
TEST(ChromeJson, OverlappingEventsGetMoreThreads) {
  EXPECT_THAT(threads_of_events({{"x"},
                                 {event(Stream::kCommunication, "a", 0, 10),
                                  event(Stream::kCommunication, "b", 5, 10),
                                  event(Stream::kCommunication, "c", 10, 5)}}),
              ElementsAre(1, 3, 1));
}

TEST(ChromeJson, NestedEventsShareAThread) {
  EXPECT_THAT(threads_of_events({{"x"},
                                 {event(Stream::kCompute, "inner", 2, 3),
                                  event(Stream::kCompute, "outer", 0, 10)}}),
              ElementsAre(0, 0));
}

// Perfetto draws a counter as a step line under its process.
TEST(ChromeJson, MemoryIsACounter) {
  const json parsed =
      json::parse(to_chrome_json({{"x", "y"}, {}, {{1, {{{0}, 10}, {{2500}, 7}}}}}));
  std::vector<json> counters;
  for (const json& each : parsed["traceEvents"])
    if (each["ph"] == "C") counters.push_back(each);
  EXPECT_THAT(
      counters,
      ElementsAre(
          json::parse(R"({"ph":"C","name":"memory","pid":1,"ts":0.0,"args":{"bytes":10}})"),
          json::parse(R"({"ph":"C","name":"memory","pid":1,"ts":2.5,"args":{"bytes":7}})")));
}

int64_t bytes_at(const MemoryOverTime& points, int64_t time) {
  int64_t bytes = 0;
  for (const auto& [from, alive] : points)
    if (from.value <= time) bytes = alive;
  return bytes;
}

// A peak of one nanosecond must be kept, and no other time may look emptier.
TEST(Thinned, IsNowhereLowerAndHasThePeak) {
  MemoryOverTime points;
  for (int64_t t = 0; t < 1000; ++t) points.push_back({{t * t}, (t * 7919) % 613});
  points[517].second = 5000;
  const MemoryOverTime few = thinned(points, 10);
  ASSERT_LE(few.size(), 10);
  for (const auto& [from, bytes] : points) ASSERT_GE(bytes_at(few, from.value), bytes);
  EXPECT_EQ(bytes_at(few, 517 * 517), 5000);
  EXPECT_LT(bytes_at(few, 0), 5000);
}

TEST(Thinned, LeavesFewPointsAsTheyAre) {
  const MemoryOverTime points = {{{0}, 3}, {{5}, 1}};
  EXPECT_EQ(thinned(points, 2), points);
}

TEST(ChromeJson, InvalidTextIsReplaced) {
  EXPECT_NO_THROW(
      json::parse(to_chrome_json({{"\xff"}, {event(Stream::kCompute, "\xc3\x28", 0, 1)}})));
}

}  // namespace
}  // namespace medley
