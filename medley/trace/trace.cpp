#include "medley/trace/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// Returns microseconds, the format's unit, with three digits for the nanoseconds.
std::string microseconds(Nanoseconds t) {
  const int64_t size = t.value < 0 ? -t.value : t.value;
  return fmt::format("{}{}.{:03}", t.value < 0 ? "-" : "", size / 1000, size % 1000);
}

// The threads of one stream: each has the ends of its open events, innermost last.
class Lanes {
 public:
  // Returns the first lane in which [start, end) nests. Requires: starts come in order.
  size_t place(Nanoseconds start, Nanoseconds end) {
    for (size_t i = 0;; ++i) {
      if (i == open_.size()) open_.emplace_back();
      std::vector<Nanoseconds>& ends = open_[i];
      while (!ends.empty() && ends.back() <= start) ends.pop_back();
      if (ends.empty() || end <= ends.back()) return ends.push_back(end), i;
    }
  }
  size_t size() const { return open_.size(); }

 private:
  std::vector<std::vector<Nanoseconds>> open_;
};

std::string_view stream_name(Stream stream) {
  return stream == Stream::kCompute ? "compute" : "communication";
}

// Returns even numbers for lanes of the compute stream, odd ones for the communication stream.
size_t thread_id(Stream stream, size_t lane) { return 2 * lane + at(stream); }

std::string metadata(const char* kind, int device, size_t thread, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})",
                     kind,
                     device,
                     thread,
                     quote(name));
}

std::string line(const TraceEvent& event, size_t thread) {
  std::string args;
  for (const auto& [key, value] : event.args)
    args += fmt::format("{}{}:{}", args.empty() ? "" : ",", quote(key), quote(value));
  return fmt::format(
      R"({{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})",
      quote(event.name),
      quote(event.category),
      event.device,
      thread,
      microseconds(event.start),
      microseconds(event.duration),
      args);
}

std::string counter(int device, Nanoseconds at, int64_t bytes) {
  return fmt::format(R"({{"ph":"C","name":"memory","pid":{},"ts":{},"args":{{"bytes":{}}}}})",
                     device,
                     microseconds(at),
                     bytes);
}

}  // namespace

void sort(Trace& trace) {
  std::stable_sort(
      trace.events.begin(), trace.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
        return std::tuple(a.device, a.stream, a.start, b.duration) <
               std::tuple(b.device, b.stream, b.start, a.duration);
      });
}

MemoryOverTime thinned(MemoryOverTime points, size_t most) {
  MEDLEY_CHECK(most >= 1);
  if (points.size() <= most) return points;
  const Nanoseconds first = points.front().first;
  const int64_t whole = (points.back().first - first).value + 1;
  MemoryOverTime result;
  for (size_t i = 0; i < points.size();) {
    const auto stretch_of = [&](Nanoseconds at) {
      return static_cast<int64_t>(__int128{(at - first).value} * static_cast<int64_t>(most) /
                                  whole);
    };
    const int64_t stretch = stretch_of(points[i].first);
    auto& highest = result.emplace_back(points[i]);
    for (; i < points.size() && stretch_of(points[i].first) == stretch; ++i)
      highest.second = std::max(highest.second, points[i].second);
  }
  return result;
}

std::string to_chrome_json(Trace trace) {
  sort(trace);
  std::vector<std::string> lines;
  std::map<std::pair<int, Stream>, Lanes> lanes;
  for (int device = 0; device < static_cast<int>(trace.devices.size()); ++device)
    for (Stream stream : {Stream::kCompute, Stream::kCommunication}) lanes[{device, stream}];
  for (const TraceEvent& event : trace.events) {
    auto stream = lanes.find({event.device, event.stream});
    MEDLEY_CHECK(stream != lanes.end());
    const size_t lane = stream->second.place(event.start, event.start + event.duration);
    lines.push_back(line(event, thread_id(event.stream, lane)));
  }
  for (const TraceMemory& memory : trace.memory)
    for (const auto& [at, bytes] : memory.bytes) lines.push_back(counter(memory.device, at, bytes));
  std::vector<std::string> names;
  for (const auto& [key, stream] : lanes) {
    const auto& [device, kind] = key;
    if (kind == Stream::kCompute)
      names.push_back(metadata("process_name", device, 0, trace.devices[at(device)]));
    for (size_t lane = 0; lane < std::max<size_t>(stream.size(), 1); ++lane) {
      std::string name(stream_name(kind));
      if (lane > 0) name += fmt::format(" {}", lane + 1);
      names.push_back(metadata("thread_name", device, thread_id(kind, lane), name));
    }
  }
  lines.insert(lines.begin(), names.begin(), names.end());
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n",
                     fmt::join(lines, ",\n"));
}

}  // namespace medley
