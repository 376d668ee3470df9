#pragma once

// How to divide devices among pipelines that are not alike (AutoHet,
// https://arxiv.org/abs/2512.20953), each of which does some of the rows of a step. Knows no graphs
// and no plans: what a pipeline takes is known of each amount of devices that it may have.
//
//   units    4 of fast, 8 of slow        of devices, by pool; a pipeline has a whole number of each
//   column   2 fast + 1 slow             fill 90 ms, period 10 ms, 4 rows in a micro-batch
//   in T     rows (1 + (T - fill) / period), whole micro-batches only
//
// A division is a multiset of columns that together have no more units than there are. Its step is
// the least T in which its columns do all rows, and what they still sum with each other then, which
// depends on how many they are.

#include <vector>

#include "medley/base/units.h"

namespace medley {

inline constexpr int64_t kLongestStep = int64_t{1} << 46;  // 20 hours

// Of each pool.
using Units = std::vector<int>;

struct Column {
  Units units;               // not all 0
  int64_t rows = 1;          // of a micro-batch
  Nanoseconds fill, period;  // B micro-batches take fill + (B - 1) period; period > 0
  // [pipelines] How long it sums gradients with others beyond that, of so many pipelines in all;
  // the last one: of more. Empty: nothing.
  std::vector<Nanoseconds> after{};
  int64_t most = int64_t{1} << 40;  // micro-batches
};

// How many rows the pipeline does in a step that takes so long, of so many pipelines.
int64_t rows_in(const Column& column, Nanoseconds step, size_t pipelines);

struct Division {
  Nanoseconds step;
  std::vector<int> columns;  // ascending, into the request's
  bool operator==(const Division&) const = default;
};

struct DivisionRequest {
  Units units;
  std::vector<Column> columns;
  int64_t rows = 1;           // of a step
  size_t pipelines = 2;       // at least, and
  size_t most_pipelines = 8;  // at most
  size_t divisions = 16;      // to return at most
  double slower = 1.1;        // than the best: none that takes longer by this factor is returned
  int most_visits = 5000;     // partial divisions that are looked at for a step
};

// The best first; of those that take as long the one with the fewest columns. The first is the best
// of all divisions where there are few amounts of units; else the best that `most_visits` for each
// step lead to. Of two columns on the same units a division has the better one for its step.
// Empty: there is none. Deterministic.
std::vector<Division> best_divisions(const DivisionRequest& request);

// So many micro-batches for each column, and rows of a step, that sum to all: as the shortest step
// has them. Requires: some step is long enough, no column has more rows than `rows`, and there are
// no more columns than `rows`.
struct RowShare {
  int64_t microbatches = 0, rows = 0;
  bool operator==(const RowShare&) const = default;
};
struct RowSplit {
  Nanoseconds step;
  std::vector<RowShare> shares;  // [column]; none is empty
};
// Columns that do nothing in the shortest step get one micro-batch.
RowSplit split_rows(const std::vector<Column>& columns, int64_t rows);

}  // namespace medley
