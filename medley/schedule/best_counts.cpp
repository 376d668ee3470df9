#include "medley/schedule/best_counts.h"

#include <numeric>

namespace medley {

bool BestCounts::consider(const std::vector<int>& counts) {
  if (!timed_.insert(counts).second) return false;
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Nanoseconds finish = time_(counts);
  if (finish > finish_ || (finish == finish_ && sum >= sum_)) return false;
  best_ = counts;
  finish_ = finish;
  sum_ = sum;
  return true;
}

}  // namespace medley
