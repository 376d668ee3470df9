#pragma once

// Divides devices among heterogeneous pipelines (AutoHet, https://arxiv.org/abs/2512.20953), each
// with a part of the rows of a step. Knows no graphs and no plans. The times of a pipeline are
// known for each amount of devices.
//
//   units    4 of fast, 8 of slow        of devices, by pool; a pipeline has a whole number of each
//   column   2 fast + 1 slow             fill 90 ms, period 10 ms, 4 rows in a micro-batch
//   in T     rows (1 + (T - fill) / period), whole micro-batches only
//
// A division is a multiset of columns within the available units. Its step is the least T in which
// its columns do all rows and then sum their gradients; that time depends on the number of columns.

#include <vector>

#include "medley/base/units.h"

namespace medley {

inline constexpr int64_t kLongestStep = int64_t{1} << 46;  // 20 hours

// Number of units of each pool.
using Units = std::vector<int>;

struct Column {
  Units units;               // not all 0
  int64_t rows = 1;          // per micro-batch
  Nanoseconds fill, period;  // B micro-batches take fill + (B - 1) period; period > 0
  // [pipelines] Extra time to sum gradients, by the number of pipelines in all; the last entry is
  // for more. Empty: 0.
  std::vector<Nanoseconds> after{};
  int64_t most = int64_t{1} << 40;  // micro-batches
};

// Returns the rows that the pipeline does in `step`, as one of `pipelines`.
int64_t rows_in(const Column& column, Nanoseconds step, size_t pipelines);

struct Division {
  Nanoseconds step;
  std::vector<int> columns;  // ascending, into the request's
  bool operator==(const Division&) const = default;
};

struct DivisionRequest {
  Units units;
  std::vector<Column> columns;
  int64_t rows = 1;           // per step
  size_t pipelines = 2;       // at least
  size_t most_pipelines = 8;  // at most
  size_t divisions = 16;      // the most to return
  double slower = 1.1;        // largest returned step relative to the best
  int most_visits = 5000;     // partial divisions searched per step
};

// Returns divisions, best first; ties go to the fewest columns. The first is optimal over all
// divisions if there are few amounts of units, else the best within `most_visits` per step. A
// division uses the better one of two columns on the same units. Empty: no division exists.
// The result is deterministic.
std::vector<Division> best_divisions(const DivisionRequest& request);

// Micro-batches and rows of each column; rows sum to all, for the shortest step. Requires: some
// step is long enough, no column has more rows than `rows`, and there are no more columns than
// `rows`.
struct RowShare {
  int64_t microbatches = 0, rows = 0;
  bool operator==(const RowShare&) const = default;
};
struct RowSplit {
  Nanoseconds step;
  std::vector<RowShare> shares;  // [column]; none is empty
};
// Columns without rows in the shortest step get one micro-batch.
RowSplit split_rows(const std::vector<Column>& columns, int64_t rows);

}  // namespace medley
