#include "medley/sharding/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// Devices of equal shares in rotation.
struct Equal {
  double share = 0;
  int64_t length = 0;           // next device's
  std::vector<size_t> devices;  // ascending
  size_t turn = 0;

  size_t next() const { return devices[turn]; }
};

}  // namespace

// Assigning rows one by one to the device with the smallest (length + 1) / share is optimal. A
// start just below the exact proportions only skips rows that it would assign anyway.
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
  std::vector<Equal> groups;
  std::map<double, size_t> by_share;  // share -> index into groups
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] == 0) continue;
    const auto [found, added] = by_share.try_emplace(shares[i], groups.size());
    if (added) groups.push_back({shares[i], lengths[i], {}, 0});
    groups[found->second].devices.push_back(i);
  }
  for (; left > 0; --left) {
    Equal* best = nullptr;
    for (Equal& each : groups) {
      if (!best) {
        best = &each;
        continue;
      }
      // Cross-multiplied: (length + 1) / share < (best length + 1) / best share.
      const double mine = static_cast<double>(each.length + 1) * best->share;
      const double its = static_cast<double>(best->length + 1) * each.share;
      if (mine < its || (mine == its && each.next() < best->next())) best = &each;
    }
    ++lengths[best->next()];
    best->turn = (best->turn + 1) % best->devices.size();
    if (best->turn == 0) ++best->length;
  }
  return lengths;
}

std::vector<int64_t> part_lengths(const Part& part,
                                  int64_t size,
                                  int devices,
                                  const Microbatch& microbatch) {
  if (part.name == "rows") return microbatch.lengths;
  if (!part.shares.empty()) return apportion(size, part.shares);
  if (part.lengths.empty()) return apportion(size, std::vector<double>(at(devices), 1.0));
  const int64_t sum = std::accumulate(part.lengths.begin(), part.lengths.end(), int64_t{0});
  if (sum != size)
    throw Error(
        Blame::kCaller,
        fmt::format("plan: parts[\"{}\"]: lengths add up to {}, but it divides a factor of {}",
                    part.name,
                    sum,
                    size));
  return part.lengths;
}

Microbatch of_fewer_rows(const Microbatch& planned, int64_t rows) {
  if (rows == planned.rows) return planned;
  const std::vector<double> shares(planned.lengths.begin(), planned.lengths.end());
  return {rows, shares.empty() ? std::vector<int64_t>{} : apportion(rows, shares)};
}

}  // namespace medley
