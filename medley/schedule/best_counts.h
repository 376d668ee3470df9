#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "medley/base/units.h"

namespace medley {

// Keeps the stage counts that finish first; ties go to the smallest sum.
class BestCounts {
 public:
  // `time`: finish time of a pipeline with these counts.
  explicit BestCounts(std::function<Nanoseconds(const std::vector<int>& counts)> time)
      : time_(std::move(time)) {}

  // Times new counts. Returns whether they are the best so far.
  bool consider(const std::vector<int>& counts) {
    if (!timed_.insert(counts).second) return false;
    const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const Nanoseconds finish = time_(counts);
    if (finish > finish_ || (finish == finish_ && sum >= sum_)) return false;
    best_ = counts;
    finish_ = finish;
    sum_ = sum;
    return true;
  }

  // Requires: some were considered.
  const std::vector<int>& counts() const { return best_; }
  Nanoseconds finish() const { return finish_; }

 private:
  const std::function<Nanoseconds(const std::vector<int>& counts)> time_;
  std::set<std::vector<int>> timed_;
  std::vector<int> best_;
  Nanoseconds finish_{INT64_MAX};
  int64_t sum_ = 0;  // sum of the best
};

}  // namespace medley
