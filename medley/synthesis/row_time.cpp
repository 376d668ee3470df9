#include "medley/synthesis/row_time.h"

#include <algorithm>

#include "medley/base/parallel.h"

namespace medley {
namespace {

// Keeps it a valid divisor.
constexpr double kLeastPerRow = 1e-15;

struct PhaseTimes {
  double rows = 0, update = 0;
};

PhaseTimes phase_times(const Graph& graph,
                       const DeviceKind& kind,
                       int64_t rows,
                       const CostModel& costs) {
  const std::vector<int64_t> symbols(std::max<size_t>(graph.symbols.size(), 1), rows);
  Nanoseconds of_rows{0}, of_update{0};
  for (const Op& op : graph.ops)
    (op.phase == Phase::kUpdate ? of_update : of_rows) += costs.op(kind, graph, op, symbols).value;
  return {to_seconds(of_rows).value, to_seconds(of_update).value};
}

}  // namespace

RowTime row_time(const Graph& graph, const DeviceKind& kind, int64_t rows, const CostModel& costs) {
  PhaseTimes once, twice;
  for_each_in_parallel(2, [&](size_t i) {
    (i == 0 ? once : twice) = phase_times(graph, kind, i == 0 ? rows : 2 * rows, costs);
  });
  const double per_row = (twice.rows - once.rows) / static_cast<double>(rows);
  const double fixed = once.rows - per_row * static_cast<double>(rows);
  // Costs are convex in the rows, so the line may have a negative intercept.
  if (fixed < 0)
    return {0, std::max(kLeastPerRow, once.rows / static_cast<double>(rows)), once.update};
  return {fixed, std::max(kLeastPerRow, per_row), once.update};
}

}  // namespace medley
