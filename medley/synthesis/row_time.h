#pragma once

#include <cstdint>

#include "medley/cost/cost_model.h"
#include "medley/graph/graph.h"

namespace medley {

// How long a device computes, in seconds: fixed + n * per_row on n > 0 rows of a micro-batch, and
// update once a step.
struct RowTime {
  double fixed = 0;
  double per_row = 0;  // above 0
  double update = 0;
};

// Reads the coefficients off the costs of the ops at `rows` and at twice as many.
// Requires: rows >= 1; `graph` is prepared, if its update is to be counted.
RowTime row_time(const Graph& graph, const DeviceKind& kind, int64_t rows, const CostModel& costs);

}  // namespace medley
