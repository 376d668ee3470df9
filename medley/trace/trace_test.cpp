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

TEST(ChromeJson, InvalidTextIsReplaced) {
  EXPECT_NO_THROW(
      json::parse(to_chrome_json({{"\xff"}, {event(Stream::kCompute, "\xc3\x28", 0, 1)}})));
}

}  // namespace
}  // namespace medley
