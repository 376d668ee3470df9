#pragma once

// The shortest step of a chain, over all periods that it can have. Private to this folder.

#include <optional>
#include <vector>

#include "medley/chains/chain_search.h"

namespace medley::pipeline {

// Periods in [low, high] that are not decided yet. No chain for any of them costs less than `cost`.
struct Interval {
  int64_t low = 0, high = 0, cost = 0;
};

// Whether chains may have pools in any order, kCounted, or each pool once.
DeviceUse use_of(const Table& table);

// All periods for one choice of micro-batches. The cost of the cheapest chain, g(P), falls as P
// grows, so a search at P decides much:
//
//   g(P) is that of a plan whose own period is P' <= P:   nothing is better in [P', P]
//   no chain for P:                                        none for shorter ones
//   g(high) + (B-1) low >= best:                           nothing in [low, high] is better
//
// The last one is HARP's limit above, T / B, of every interval.
class Periods {
 public:
  // `alone`: else others search at the same time, on the same cores.
  Periods(const PipelineRequest& request,
          Table table,
          int choice,
          PipelinePlans& found,
          bool alone = true);

  // Returns a lower bound of this choice; updates what was found.
  int64_t run();
  int64_t step_bound(int64_t enough) const;

 private:
  int64_t best() const {
    const int64_t below = request_.below.value;
    return found_.plans.empty() ? below : std::min(below, found_.plans.front().predicted.value);
  }
  // No better plan than this matters.
  int64_t enough() const {
    if (best() == kNever || request_.gap <= 0) return best();
    return best() - static_cast<int64_t>(static_cast<double>(best()) * request_.gap);
  }
  int64_t bound(const Interval& interval) const { return interval.cost + more_ * interval.low; }
  // Searches at the upper ends of some intervals, on all cores. Returns what is left of each.
  std::vector<std::optional<Interval>> search(const std::vector<Interval>& intervals);
  // Adds the plan of the cheapest chain for the upper end. Returns what is left of the interval.
  std::optional<Interval> take(const Chain& chain, Interval interval);
  // Where to divide an interval: at the middle one of the steps in it, or, as long as nothing is
  // found, before it, since short periods are searched sooner; at its end if there are few.
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
