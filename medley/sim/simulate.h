#pragma once

// What will happen when a program runs: the same calls, segments and communications that the
// runtime executes, with times from the cost model. Every device has a stream for ops and streams
// for communications (stream_of() of program/lanes.h); messages share links as the emulator's do
// (network/flow_engine.h), so both agree to the nanosecond where they are told the same times of
// ops.
//
//   device 0   segment | post a | segment ........... | wait a | segment
//   device 1   segment .......... | post a | segment  | wait a | segment
//   network                                 a ========
//
// What stages send each other is posted ahead by who receives it; who sends waits where too many
// are under way (Communication::depth).
//
// While a device communicates, its ops take longer by the factor that the profile has for its kind,
// if it has one (CostModel::overlap_slowdown). Integer nanoseconds, deterministic. Knows nothing of
// strategies or of how plans are found.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/units.h"
#include "medley/cost/cost_model.h"
#include "medley/program/program.h"
#include "medley/schedule/timer.h"
#include "medley/trace/trace.h"

namespace medley {

struct SimulateOptions {
  // Steps of more messages are simulated by the estimates of their communications (sim/network.h).
  // A ring or direct all-reduce of n devices has 2 n (n - 1) messages.
  int64_t exact_messages = 1'000'000;
  bool trace = false;   // fill Simulation::trace
  bool memory = false;  // fill the memory of SimulatedDevice
  bool relays = false;  // fill its relays and when it goes backward
};

struct SimulatedCall {
  Call call;
  Nanoseconds computes;
  Nanoseconds waits;  // for exchanges of its own stage
  Nanoseconds ends;   // when the device is through with it
  bool operator==(const SimulatedCall&) const = default;
};

// A device's own part in one.
struct SimulatedRelay {
  int communication = 0;  // of its stage
  TimeSpan span;
  bool operator==(const SimulatedRelay&) const = default;
};

struct SimulatedDevice {
  int device = 0;  // of the cluster
  int stage = 0;
  Nanoseconds computes;      // its compute stream is busy
  Nanoseconds waits;         // its compute stream stands still, until the step ends
  Nanoseconds idles;         // of that, not for exchanges of its own stage: for other stages
  Nanoseconds others;        // of that, for other pipelines: its own has come to what all sum
  Nanoseconds communicates;  // its communication streams are busy, overlapped or not; their sum
  // As memory_use() (memory/memory.h) counts.
  int64_t persistent_bytes = 0, peak_bytes = 0;
  std::string peak_at;
  std::vector<SimulatedCall> calls;                               // in their order
  std::vector<std::pair<Nanoseconds, int64_t>> memory_over_time;  // (from, bytes alive)
  std::vector<TimeSpan> backward;      // in which it computes the backward phase, in their order
  std::vector<SimulatedRelay> relays;  // in the order in which it waits for them
  bool operator==(const SimulatedDevice&) const = default;
};

struct Simulation {
  Nanoseconds step;                              // until the last device is done
  std::vector<SimulatedDevice> devices;          // those of the program, in its order
  std::map<std::string, int64_t> bytes_by_link;  // Link::name -> bytes in a step
  std::map<CostSource, int> ops_by_source;       // how many of the ops that take time
  int64_t events = 0;                            // segments and messages followed
  bool exact = true;  // else by estimates: of what the emulation would do, a little less
  Trace trace;
  double bubble() const;  // what devices idle, as a share of their time
  bool operator==(const Simulation&) const = default;
};

// One step.
Simulation simulate(const Program& program,
                    const CostModel& costs,
                    const SimulateOptions& options = {});

}  // namespace medley
