#pragma once

// Lower bounds of the cost of a chain in front of a stage. The search goes from the last layer to
// the first and drops chains that cannot end below a limit. Private to this folder. Memory and
// updates are free:
//
//   ahead(0, ..) = 0
//   devices paid for   ahead(l, p) = min over stages [b, l) of t <= P on n devices of q:
//                        t + price n + r(q, p) + ahead(b, q)
//   counted            ahead(l, p, left) = the same, n <= left of q, with ahead(b, q, left - n)
//   each pool once     ahead(l, F, p, k) = min over stages [b, l) of t <= P
//                        on n <= k of p:             t + r(p, p) + ahead(b, F, p, k - n)
//                        on n of q, not in F or p:   t + r(q, p) + ahead(b, F + p, q, all - n)
//
// F: pools that later stages have finished with; k: devices left of p. If the first stages may use
// the pool p of the last ones, F stays empty after p.

#include <cstdint>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Bounds with priced, uncounted devices.
struct AheadPaid {
  AheadPaid(const Table& table, const ChainSearch& search);
  size_t index(int layer, int pool) const { return at(layer) * pools + at(pool); }

  const size_t pools;
  std::vector<int64_t> cost, time;  // [layer][pool]; time: of Q. kNever: there are none
  // Bound under any schedule, from R after such stages: with a larger R no stage fits, even with
  // the most memory of the fastest ones.
  std::vector<int64_t> deepest;
  std::vector<int64_t> whole;  // [pool of its last stage] cost of a chain

 private:
  struct Least {
    int64_t cost = kNever, time = kNever, depth = -1;
  };
  Least least_before(const Table& table, const ChainSearch& search, int layer, int pool) const;
};

// A stage within the period, and its contribution.
struct StageAhead {
  int begin = 0, devices = 0;  // counted as Table::units()
  int64_t added = 0;
};

// Returns the fastest stage of each mesh of a pool that ends at `layer`. Its contribution is fill
// and price; under any schedule, its part of Q.
std::vector<StageAhead> stages_before(const Table& table,
                                      const ChainSearch& search,
                                      int layer,
                                      int pool);
// Returns the part of a boundary; kNever without a link or beyond the period.
int64_t added_by_crossing(
    const Table& table, const ChainSearch& search, int from, int to, int layer);

// Bounds with counted devices and pools in any order.
class AheadCounted {
 public:
  AheadCounted(const Table& table, const ChainSearch& search);

  // Returns the least fill + r and prices of stages with layers [0, layer) before a stage on
  // `pool`; under any schedule the least of Q. `place`: place_of() the devices left in each pool.
  // kNever: no such stages.
  int64_t sum(int layer, int pool, size_t place) const { return sums_[index(layer, pool) + place]; }
  size_t place_of(int pool, int left) const { return at(left) * strides_[at(pool)]; }
  // [pool of its last stage] The least of a whole chain.
  const std::vector<int64_t>& whole() const { return whole_; }

 private:
  // Lowers `least`, [place], to chains whose last stage on a pool ends at `layer`.
  void add(int layer, int pool, std::vector<int64_t>& least) const;
  size_t index(int layer, int pool) const {
    return (at(layer) * at(table_.pools()) + at(pool)) * strides_.back();
  }

  const Table& table_;
  const ChainSearch& search_;
  std::vector<size_t> strides_;  // [pool]; one more
  std::vector<int64_t> sums_;    // [layer][pool][place]
  std::vector<int64_t> whole_;
};

// Bounds with each pool once, on counted devices without prices.
class AheadOnce {
 public:
  AheadOnce(const Table& table, const ChainSearch& search);

  // Returns the least fill + r (under any schedule: of Q) of stages with layers [0, layer) before a
  // stage on `pool`. `left`: free devices of `pool`, in Table::units(). Later stages have all their
  // devices of the pools in `finished`. kNever: no such stages. Requires: `finished` is without
  // `pool`.
  int64_t sum(int layer, unsigned finished, int pool, int left) const {
    return row(layer, finished, pool)[left];
  }
  // [pool of its last stage] The least of a whole chain.
  const std::vector<int64_t>& whole() const { return whole_; }

 private:
  void fill(int layer);
  size_t index(int layer, unsigned finished, int pool) const {
    const auto pools = at(table_.pools());
    const size_t state = finished * pools + at(pool);
    return (at(layer) * (pools << pools) + state) * stride_;
  }
  const int64_t* row(int layer, unsigned finished, int pool) const {
    return sums_.data() + index(layer, finished, pool);
  }

  const Table& table_;
  const ChainSearch& search_;
  const size_t stride_;  // the most devices of a pool, plus one
  std::vector<int64_t> sums_;
  std::vector<int64_t> whole_;
};

}  // namespace medley::pipeline
