#pragma once

// Lower bounds of the cost of a chain in front of a stage. The search over chains goes from the
// last layer to the first, and drops chains that cannot be finished below a limit. Private to this
// folder. Memory and updates are for nothing:
//
//   ahead(0, ..) = 0
//   devices paid for   ahead(l, p) = min over stages [b, l) of t <= P on n devices of q:
//                        t + price n + r(q, p) + ahead(b, q)
//   counted            ahead(l, p, left) = the same, n <= left of q, with ahead(b, q, left - n)
//   each pool once     ahead(l, F, p, k) = min over stages [b, l) of t <= P
//                        on n <= k of p:             t + r(p, p) + ahead(b, F, p, k - n)
//                        on n of q, not in F or p:   t + r(q, p) + ahead(b, F + p, q, all - n)
//
// F: pools that stages behind are finished with; k: devices of p that are left. Where the first
// stages may be on the pool p of the last ones, F stays empty when p is left.

#include <cstdint>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Devices are paid for, and none is counted.
struct AheadPaid {
  AheadPaid(const Table& table, const ChainSearch& search);
  size_t index(int layer, int pool) const { return at(layer) * pools + at(pool); }

  const size_t pools;
  std::vector<int64_t> cost, time;  // [layer][pool]; time: of Q. kNever: there are none
  // Under any schedule, of R behind such stages: with more of it none has room, even where the
  // fastest of a stage has as much as any.
  std::vector<int64_t> deepest;
  std::vector<int64_t> whole;  // [pool of its last stage] cost of a chain

 private:
  struct Least {
    int64_t cost = kNever, time = kNever, depth = -1;
  };
  Least least_before(const Table& table, const ChainSearch& search, int layer, int pool) const;
};

// A stage that is short enough, with what it adds.
struct StageAhead {
  int begin = 0, devices = 0;  // counted as Table::units()
  int64_t added = 0;
};

// Returns the fastest stage of each mesh of a pool that ends there. It adds fill and price; under
// any schedule its part of Q.
std::vector<StageAhead> stages_before(const Table& table,
                                      const ChainSearch& search,
                                      int layer,
                                      int pool);
// Returns the part of a boundary; kNever if there is none, or it takes longer than the period.
int64_t added_by_crossing(
    const Table& table, const ChainSearch& search, int from, int to, int layer);

// Counted devices, pools in any order.
class AheadCounted {
 public:
  AheadCounted(const Table& table, const ChainSearch& search);

  // The least fill + r and prices, under any schedule the least of Q, of stages with layers
  // [0, layer) in front of a stage on `pool`, where so many devices of each pool are left
  // (place_of()). kNever: there are none.
  int64_t sum(int layer, int pool, size_t place) const { return sums_[index(layer, pool) + place]; }
  size_t place_of(int pool, int left) const { return at(left) * strides_[at(pool)]; }
  // [pool of its last stage] The same of a chain.
  const std::vector<int64_t>& whole() const { return whole_; }

 private:
  // Lowers `least`, [place], to stages on a pool that end there, with those in front of them.
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

// Each pool once, on counted devices without prices.
class AheadOnce {
 public:
  AheadOnce(const Table& table, const ChainSearch& search);

  // The least fill + r, under any schedule the least of Q, of stages with layers [0, layer) in
  // front of a stage on `pool`, which has `left` devices left (counted as Table::units()), where
  // stages behind have all they need of the pools in `finished`. kNever: there are none. Requires:
  // `finished` is without `pool`.
  int64_t sum(int layer, unsigned finished, int pool, int left) const {
    return row(layer, finished, pool)[left];
  }
  // [pool of its last stage] The same of a chain.
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
  const size_t stride_;  // the most devices of a pool, and one
  std::vector<int64_t> sums_;
  std::vector<int64_t> whole_;
};

}  // namespace medley::pipeline
