#pragma once

// How much of a trace each device computed, waited and communicated.

#include <string>
#include <vector>

#include "medley/trace/trace.h"

namespace medley {

// Overlapping events of one device count once.
//
//   compute         [forward][waiting][backward]     busy = forward + backward
//   communication        [all_gather ]               communicating may overlap with busy
//   <-------------------- span ------------------->  of all devices together
struct DeviceSummary {
  std::string device;
  Nanoseconds busy, waiting, communicating;
  double waiting_share = 0;  // of the span
  bool operator==(const DeviceSummary&) const = default;
};

struct TraceSummary {
  Nanoseconds span;  // from the first start to the last end
  std::vector<DeviceSummary> devices;
  bool operator==(const TraceSummary&) const = default;
};

TraceSummary summarize(const Trace& trace);

// Returns a table for people, one line per device.
std::string to_string(const TraceSummary& summary);

}  // namespace medley
