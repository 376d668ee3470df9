#include "medley/solve/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "medley/base/error.h"

namespace medley {
namespace {

// Returns the most rows that each device finishes by time `t`.
std::vector<int64_t> rows_by(double t,
                             int64_t total,
                             const std::vector<double>& fixed,
                             const std::vector<double>& per_row) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < fixed.size(); ++i) {
    const double done = std::floor((t - fixed[i]) / per_row[i]);
    rows.push_back(static_cast<int64_t>(std::clamp(done, 0.0, static_cast<double>(total))));
  }
  return rows;
}

int64_t sum_of(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

}  // namespace

// Bisects the time at which all rows are done, then assigns the rows left at the time just before,
// each to the device that finishes it first.
std::vector<int64_t> balance(int64_t total,
                             const std::vector<double>& fixed,
                             const std::vector<double>& per_row) {
  MEDLEY_CHECK_EQ(fixed.size(), per_row.size());
  MEDLEY_CHECK(!fixed.empty() && total >= 0);
  double early = 0, late = fixed[0] + static_cast<double>(total + 1) * per_row[0];
  for (int i = 0; i < 100; ++i) {
    const double middle = (early + late) / 2;
    (sum_of(rows_by(middle, total, fixed, per_row)) < total ? early : late) = middle;
  }
  std::vector<int64_t> rows = rows_by(early, total, fixed, per_row);
  int64_t left = total - sum_of(rows);
  // Equal devices finish at one time, so several rows may be left.
  MEDLEY_CHECK(left >= 0);
  for (; left > 0; --left) {
    size_t best = 0;
    double best_time = INFINITY;
    for (size_t i = 0; i < rows.size(); ++i) {
      const double time = fixed[i] + static_cast<double>(rows[i] + 1) * per_row[i];
      if (time < best_time * (1 - 1e-12)) {
        best = i;
        best_time = time;
      }
    }
    ++rows[best];
  }
  return rows;
}

}  // namespace medley
