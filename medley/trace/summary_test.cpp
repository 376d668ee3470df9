#include "medley/trace/summary.h"

#include <gmock/gmock.h>

namespace medley {
namespace {

TraceEvent event(int device, Stream stream, std::string category, int64_t start, int64_t end) {
  return {device, stream, category, category, {start}, {end - start}, {}};
}

// Of 100 ns, device x computes 20 + 30 and waits 40; its two communications overlap in 10 of 50.
TEST(Summary, CountsOverlappingEventsOnce) {
  const Trace trace{{"x", "y"},
                    {event(0, Stream::kCompute, "forward", 0, 20),
                     event(0, Stream::kCompute, std::string(kWaiting), 20, 60),
                     event(0, Stream::kCompute, "backward", 60, 90),
                     event(0, Stream::kCommunication, "all_reduce", 10, 40),
                     event(0, Stream::kCommunication, "all_gather", 30, 60),
                     event(1, Stream::kCompute, "forward", 0, 100)}};
  EXPECT_EQ(summarize(trace),
            (TraceSummary{{100}, {{"x", {50}, {40}, {50}, 0.4}, {"y", {100}, {0}, {0}, 0.0}}}));
}

TEST(Summary, EmptyTraceHasNoSpan) {
  EXPECT_EQ(summarize({{"x"}, {}}), (TraceSummary{{0}, {{"x", {0}, {0}, {0}, 0.0}}}));
}

TEST(Summary, PrintsOneLinePerDevice) {
  const Trace trace{{"x"}, {event(0, Stream::kCompute, std::string(kWaiting), 0, 2000)}};
  EXPECT_THAT(to_string(summarize(trace)), ::testing::HasSubstr("100.0 %"));
}

}  // namespace
}  // namespace medley
