#pragma once

#include <cstdint>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"

namespace medley {

// Compute time of a device in seconds: fixed + n * per_row for n > 0 rows of a micro-batch, plus
// update once per step.
struct RowTime {
  double fixed = 0;
  double per_row = 0;  // above 0
  double update = 0;
};

// Fits the coefficients to op costs at `rows` and twice as many rows. Requires: rows >= 1; `graph`
// is prepared, if its update is to be counted.
RowTime row_time(const Graph& graph, const DeviceKind& kind, int64_t rows, const CostModel& costs);

}  // namespace medley
