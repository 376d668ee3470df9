#include "medley/plan/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "medley/base/error.h"

namespace medley {

// Giving rows one by one, each to the device whose (length + 1) / share is then smallest, is
// optimal. Starting from just below the exact proportions only skips rows that it would give
// anyway.
std::vector<int64_t> apportion(int64_t total, const std::vector<double>& shares) {
  MEDLEY_CHECK(total >= 0);
  double sum = 0;
  for (double share : shares) {
    MEDLEY_CHECK(share >= 0 && std::isfinite(share));
    sum += share;
  }
  std::vector<int64_t> lengths(shares.size(), 0);
  if (total == 0) return lengths;
  MEDLEY_CHECK(sum > 0 && std::isfinite(sum));

  for (size_t i = 0; i < shares.size(); ++i) {
    const double exact = static_cast<double>(total) * (shares[i] / sum);
    lengths[i] = std::max<int64_t>(0, static_cast<int64_t>(std::floor(exact * (1 - 1e-12))) - 1);
  }
  int64_t left = total - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  MEDLEY_CHECK(left >= 0);
  for (; left > 0; --left) {
    size_t best = shares.size();
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == 0) continue;
      // Cross-multiplied: (lengths[i] + 1) / shares[i] < (lengths[best] + 1) / shares[best].
      if (best == shares.size() || static_cast<double>(lengths[i] + 1) * shares[best] <
                                       static_cast<double>(lengths[best] + 1) * shares[i])
        best = i;
    }
    ++lengths[best];
  }
  return lengths;
}

}  // namespace medley
