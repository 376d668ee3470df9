#pragma once

// The deviation of op times in a run from the cost model. If they drift, the profile should be
// repeated. A run measures segments, not ops. Each segment represents the class of ops with most of
// its predicted time.
//
//   measured    |== segment ==|wait|=== segment ===|        ratio = measured / predicted
//   predicted   |= mm mm add =|    |= add mul sum =|        median by (device type, class)

#include <map>
#include <string>
#include <vector>

#include "medley/cost/cost_model.h"
#include "medley/program/program.h"
#include "medley/runtime/interpreter.h"

namespace medley {

struct DriftRow {
  std::string kind;  // device type
  WorkClass work_class = WorkClass::kMemory;
  double ratio = 1;                 // median of measured / predicted
  Nanoseconds predicted, measured;  // per step, over its segments
  int64_t segments = 0;             // measured so far
  bool operator==(const DriftRow&) const = default;
};

inline constexpr double kDriftLimit = 0.2;  // beyond, profile again

class DriftMeter {
 public:
  // Prices all segments once. Requires: `program` outlives this.
  DriftMeter(const Program& program, const CostModel& costs);

  // Adds a step report of one device, with its events. `device` is an index into the stage's mesh.
  // Throws Error(kUs) if they are not of this program.
  void add(int stage, int device, const StepReport& report);
  // Returns rows sorted by device type and class.
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
    std::vector<Price> prices;  // segments, in order of the calls
  };

  std::map<std::pair<int, int>, DevicePrices> devices_;  // by stage and place in its mesh
  std::map<std::pair<std::string, WorkClass>, Samples> samples_;
  std::map<std::string, int64_t> steps_;  // by device type
};

// Returns a table and, beyond the limit, the remedy.
std::string to_string(const std::vector<DriftRow>& rows);

}  // namespace medley
