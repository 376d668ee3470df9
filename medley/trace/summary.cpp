#include "medley/trace/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

struct Span {
  Nanoseconds start, end;
  auto operator<=>(const Span&) const = default;
};

Nanoseconds covered(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end());
  Nanoseconds total;
  for (size_t i = 0; i < spans.size();) {
    Span merged = spans[i++];
    for (; i < spans.size() && spans[i].start <= merged.end; ++i)
      merged.end = std::max(merged.end, spans[i].end);
    total += merged.end - merged.start;
  }
  return total;
}

}  // namespace

TraceSummary summarize(const Trace& trace) {
  struct Spans {
    std::vector<Span> busy, waiting, communicating;
  };
  std::vector<Spans> spans(trace.devices.size());
  std::vector<Span> all;
  for (const TraceEvent& event : trace.events) {
    MEDLEY_CHECK(event.device >= 0 && event.device < static_cast<int>(spans.size()));
    Spans& device = spans[at(event.device)];
    const Span span{event.start, event.start + event.duration};
    if (event.stream == Stream::kCommunication)
      device.communicating.push_back(span);
    else
      (event.category == kWaiting ? device.waiting : device.busy).push_back(span);
    all.push_back(span);
  }
  TraceSummary summary;
  if (!all.empty()) {
    Span whole = all.front();
    for (const Span& span : all)
      whole = {std::min(whole.start, span.start), std::max(whole.end, span.end)};
    summary.span = whole.end - whole.start;
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    DeviceSummary device{trace.devices[i],
                         covered(spans[i].busy),
                         covered(spans[i].waiting),
                         covered(spans[i].communicating)};
    if (summary.span > Nanoseconds{}) device.waiting_share = device.waiting / summary.span;
    summary.devices.push_back(device);
  }
  return summary;
}

std::string to_string(const TraceSummary& summary) {
  size_t width = 6;
  for (const DeviceSummary& device : summary.devices) width = std::max(width, device.device.size());
  std::string text = fmt::format("{:{}} {:>10} {:>10} {:>13} {:>8}\n",
                                 "device",
                                 width,
                                 "busy",
                                 "waiting",
                                 "communicating",
                                 "waits");
  for (const DeviceSummary& device : summary.devices)
    text += fmt::format("{:{}} {:>10} {:>10} {:>13} {:>6.1f} %\n",
                        device.device,
                        width,
                        to_string(device.busy),
                        to_string(device.waiting),
                        to_string(device.communicating),
                        100 * device.waiting_share);
  return text;
}

}  // namespace medley
