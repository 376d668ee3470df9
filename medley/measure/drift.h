#pragma once

// How far the times of ops in a run are from what the cost model says: where they have drifted, the
// profile is to be made again. A run tells times of segments, not of ops; a segment speaks for the
// class of ops that takes most of its predicted time.
//
//   measured    |== segment ==|wait|=== segment ===|        ratio = measured / predicted
//   predicted   |= mm mm add =|    |= add mul sum =|        median by (kind of device, class)

#include <map>
#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/program/program.h"
#include "medley/runtime/interpreter.h"

namespace medley {

struct DriftRow {
  std::string kind;  // of device
  WorkClass work_class = WorkClass::kMemory;
  double ratio = 1;                 // median of measured / predicted
  Nanoseconds predicted, measured;  // of a step, of its segments
  int64_t segments = 0;             // measured so far
  bool operator==(const DriftRow&) const = default;
};

inline constexpr double kDriftLimit = 0.2;  // beyond, profile again

class DriftMeter {
 public:
  // Prices everything once. Requires: `program` outlives this.
  DriftMeter(const Program& program, const CostModel& costs);

  // The report of a step of one device, with its events; `device` is an index into the stage's
  // mesh. Throws Error(kUs) if they are not of this program.
  void add(int stage, int device, const StepReport& report);
  // Sorted by kind and class.
  std::vector<DriftRow> rows() const;

 private:
  struct Price {
    Nanoseconds time;
    WorkClass most = WorkClass::kMemory;
  };
  struct Samples {
    std::vector<double> ratios;
    Nanoseconds predicted, measured;
  };
  static Price price(const LoweredStage& stage,
                     const Segment& segment,
                     const std::vector<int64_t>& table,
                     const DeviceKind& kind,
                     const CostModel& costs);
  struct DevicePrices {
    std::string kind;
    std::vector<Price> prices;  // of segments, in order of the calls
  };

  std::map<std::pair<int, int>, DevicePrices> devices_;  // by stage and place in its mesh
  std::map<std::pair<std::string, WorkClass>, Samples> samples_;
  std::map<std::string, int64_t> steps_;  // of all devices of a kind
};

// Returns a table for people and, beyond the limit, what to do.
std::string to_string(const std::vector<DriftRow>& rows);

}  // namespace medley
