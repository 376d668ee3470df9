#pragma once

// Finds the shortest step of a chain over all its possible periods. Private to this folder.

#include <optional>
#include <vector>

#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Undecided periods in [low, high]. Every chain for one of them costs at least `cost`.
struct Interval {
  int64_t low = 0, high = 0, cost = 0;
};

// Returns kCounted if chains may have pools in any order, else each pool once.
DeviceUse use_of(const Table& table);

// Searches all periods for one choice of micro-batches. The cost of the cheapest chain, g(P), falls
// as P grows, so one search at P decides many periods:
//
//   g(P) is that of a plan whose own period is P' <= P:   nothing is better in [P', P]
//   no chain for P:                                        none for shorter ones
//   g(high) + (B-1) low >= best:                           nothing in [low, high] is better
//
// The last rule applies HARP's limit T / B to every interval.
class Periods {
 public:
  // `alone`: false if other searches run in parallel on the same cores.
  Periods(const PipelineRequest& request,
          Table table,
          int choice,
          PipelinePlans& found,
          bool alone = true);

  // Returns a lower bound of this choice and updates `found`.
  int64_t run();
  int64_t step_bound(int64_t enough) const;

 private:
  int64_t best() const {
    const int64_t below = request_.below.value;
    return found_.plans.empty() ? below : std::min(below, found_.plans.front().predicted.value);
  }
  // Plans that are not below this limit are ignored.
  int64_t enough() const {
    if (best() == kNever || request_.gap <= 0) return best();
    return best() - static_cast<int64_t>(static_cast<double>(best()) * request_.gap);
  }
  int64_t bound(const Interval& interval) const { return interval.cost + more_ * interval.low; }
  // Searches at the upper ends of `intervals`, on all cores. Returns the rest of each.
  std::vector<std::optional<Interval>> search(const std::vector<Interval>& intervals);
  // Adds the plan of the cheapest chain for the upper end. Returns the rest of the interval.
  std::optional<Interval> take(const Chain& chain, Interval interval);
  // Returns the point at which to divide an interval. It is the middle one of the steps in it, its
  // end if few remain. Until a plan is found it is earlier: short periods are searched faster.
  int64_t middle_of(const Interval& interval) const;
  void add(PipelinePlan plan);
  std::vector<Interval> first_intervals(int64_t least);

  const PipelineRequest& request_;
  PipelinePlans& found_;
  const Table table_;
  const int choice_;
  const int64_t more_;
  const DeviceUse use_;
  const bool alone_;
};

}  // namespace medley::pipeline
