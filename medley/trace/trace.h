#pragma once

// The timeline of every device, simulated or measured: one format, so that both can be compared.
// Knows nothing of programs.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "medley/base/units.h"

namespace medley {

// The parallel streams of a device: computing and communication.
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

// Live bytes, each from its time until the next.
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

// Returns at most `most` points: one for each of `most` equal time intervals, at its first point
// and with its maximum. Never less than the input, with the same peak. Requires: most >= 1, times
// in order.
MemoryOverTime thinned(MemoryOverTime points, size_t most);

// Sorts stably by device, stream, start and longest first: the order in which the writers show
// events.
void sort(Trace& trace);

// Returns JSON for Perfetto (https://ui.perfetto.dev) and chrome://tracing. A device is a process,
// a stream is a thread. Events of one stream that overlap without nesting get more threads:
//
//   communication    [all_reduce a     ]      [all_reduce c]
//   communication 2         [all_reduce b       ]
//
// Memory is a counter of its process. Equal traces give equal bytes.
std::string to_chrome_json(Trace trace);

}  // namespace medley
