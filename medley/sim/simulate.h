#pragma once

// Simulates a program: the calls, segments and communications that the runtime executes, with times
// from the cost model. Each device has a stream for ops and streams for communications (stream_of()
// of program/lanes.h). Messages share links as in the emulator (network/flow_engine.h), so both
// agree exactly if given equal op times.
//
//   device 0   segment | post a | segment ........... | wait a | segment
//   device 1   segment .......... | post a | segment  | wait a | segment
//   network                                 a ========
//
// Receivers post messages between stages ahead; senders wait at Communication::depth messages in
// transit.
//
// While a device communicates, its ops take longer by the profile's factor for its type, if any
// (CostModel::overlap_slowdown). Integer ns, deterministic. Knows nothing of strategies or of how
// plans are found.

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
  // Steps with more messages are simulated by the estimates of their communications
  // (sim/network.h). A ring or direct all-reduce of n devices has 2 n (n - 1) messages.
  int64_t exact_messages = 1'000'000;
  bool trace = false;   // fill Simulation::trace
  bool memory = false;  // fill the memory of SimulatedDevice
  bool syncs = false;   // fill its gradient syncs and backward times
};

struct SimulatedCall {
  Call call;
  Nanoseconds computes;
  Nanoseconds waits;  // for exchanges of its own stage
  Nanoseconds ends;   // when the device finishes it
  bool operator==(const SimulatedCall&) const = default;
};

// A device's own part in a gradient sync.
struct SimulatedGradientSync {
  int communication = 0;  // in its stage
  TimeSpan span;
  bool operator==(const SimulatedGradientSync&) const = default;
};

struct SimulatedDevice {
  int device = 0;  // in the cluster
  int stage = 0;
  Nanoseconds computes;      // its compute stream is busy
  Nanoseconds waits;         // its compute stream is idle, until the step ends
  Nanoseconds idles;         // part of `waits` for other stages
  Nanoseconds others;        // part of `idles` for other pipelines, at a joint sum
  Nanoseconds communicates;  // sum over its communication streams, overlapped or not
  // Counted as by memory_use() (memory/memory.h).
  int64_t persistent_bytes = 0, peak_bytes = 0;
  std::string peak_at;
  std::vector<SimulatedCall> calls;                               // in their order
  std::vector<std::pair<Nanoseconds, int64_t>> memory_over_time;  // (from, bytes alive)
  std::vector<TimeSpan> backward;                                 // backward phase, in order
  std::vector<SimulatedGradientSync> syncs;                       // in the order of its waits
  bool operator==(const SimulatedDevice&) const = default;
};

struct Simulation {
  Nanoseconds step;                              // until the last device is done
  std::vector<SimulatedDevice> devices;          // those of the program, in its order
  std::map<std::string, int64_t> bytes_by_link;  // Link::name -> bytes in a step
  std::map<CostSource, int> ops_by_source;       // number of ops that take time
  int64_t events = 0;                            // segments and messages simulated
  bool exact = true;  // false: by estimates, slightly below the emulation
  Trace trace;
  double bubble() const;  // idle share of the devices' time
  bool operator==(const Simulation&) const = default;
};

// Simulates one step.
Simulation simulate(const Program& program,
                    const CostModel& costs,
                    const SimulateOptions& options = {});

}  // namespace medley
