#pragma once

// What a chain of stages costs at least in front of a stage: the search over chains goes from the
// last layer to the first, and what cannot be finished below a limit need not be kept. Private to
// pipeline*.cpp.
//
//   ahead(0, ..) = 0
//   ahead(l, F, p, k) = min over stages [b, l) of t <= P
//       on n <= k devices of p:         t + r(p, p) + ahead(b, F, p, k - n)
//       on n of q, neither p nor in F:  t + r(q, p) + ahead(b, F + p, q, all of q - n)
//
// Memory and updates for nothing: the same as the chains' own sums where these do not matter.

#include <cstdint>
#include <vector>

#include "medley/base/at.h"
#include "medley/pipelines/pipeline_table.h"

namespace medley::pipeline {

class Ahead {
 public:
  // `any_schedule`: what Table::in_front() says of stages and boundaries, in place of fill + r.
  Ahead(const Table& table, int64_t period, bool any_schedule);

  // The least fill + r of stages with layers [0, layer) in front of a stage on `pool`, which has
  // `left` devices left (counted as Table::units()), where stages behind have all they need of the
  // pools in `finished`. kNever: there are none. Requires: `finished` is without `pool`.
  int64_t sum(int layer, unsigned finished, int pool, int left) const {
    return row(layer, finished, pool)[left];
  }

 private:
  struct Stage {
    int begin, devices;
    int64_t time;
  };
  void fill(int layer);
  std::vector<Stage> stages_before(int layer, int pool) const;
  // What the crossing adds; kNever: there is none, or it takes longer than the period.
  int64_t added_by(int from, int to, int layer) const;
  size_t index(int layer, unsigned finished, int pool) const {
    const auto pools = at(table_.pools());
    const size_t state = finished * pools + at(pool);
    return (at(layer) * (pools << pools) + state) * stride_;
  }
  const int64_t* row(int layer, unsigned finished, int pool) const {
    return sums_.data() + index(layer, finished, pool);
  }

  const Table& table_;
  const int64_t period_;
  const bool any_schedule_;
  const size_t stride_;  // the most devices of a pool, and one
  std::vector<int64_t> sums_;
};

}  // namespace medley::pipeline
