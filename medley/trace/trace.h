#pragma once

// What every device did and when, simulated or measured: one format, so that "predicted against
// measured" is a comparison of two values. Knows nothing of programs.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/base/units.h"

namespace medley {

// What a device does at the same time: it computes on one stream and communicates on the other.
enum class Stream : uint8_t { kCompute, kCommunication };

// The category of compute-stream events in which the device only waits for a communication.
inline constexpr std::string_view kWaiting = "waiting";

struct TraceEvent {
  int device = 0;  // index into Trace::devices
  Stream stream = Stream::kCompute;
  std::string name;      // "forward 2", "all_gather wte.weight"
  std::string category;  // "forward", "all_gather", kWaiting
  Nanoseconds start, duration;
  std::vector<std::pair<std::string, std::string>> args;  // shown when the event is clicked
  bool operator==(const TraceEvent&) const = default;
};

// Bytes alive, each from its time on until the next.
using MemoryOverTime = std::vector<std::pair<Nanoseconds, int64_t>>;

struct TraceMemory {
  int device = 0;  // index into Trace::devices
  MemoryOverTime bytes;
  bool operator==(const TraceMemory&) const = default;
};

struct Trace {
  std::vector<std::string> devices;  // names
  std::vector<TraceEvent> events;    // in any order
  std::vector<TraceMemory> memory = {};
  bool operator==(const Trace&) const = default;
};

// Returns at most `most` points: of each of `most` equal stretches of time one, at the first of its
// points and as high as the highest. At no time less than what was given, and the same peak.
// Requires: most >= 1, times in order.
MemoryOverTime thinned(MemoryOverTime points, size_t most);

// Sorts by device, stream, start and longest first: the order in which the writers show events.
// Events that agree in all of these stay in their order.
void sort(Trace& trace);

// Returns the JSON that Perfetto (https://ui.perfetto.dev) and chrome://tracing read. A device is a
// process, a stream is a thread; events of one stream that overlap without nesting get more
// threads:
//
//   communication    [all_reduce a     ]      [all_reduce c]
//   communication 2         [all_reduce b       ]
//
// Memory is a counter of its process. Equal traces give equal bytes.
std::string to_chrome_json(Trace trace);

}  // namespace medley
