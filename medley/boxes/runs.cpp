#include "medley/boxes/runs.h"

#include "medley/base/error.h"

namespace medley {
namespace {

// Returns loops over a box. `strides`: per factor, outermost first.
Runs loops_over(const Box& box, const std::vector<int64_t>& strides, int64_t start, int64_t bytes) {
  Runs runs{start * bytes, bytes, {}, {}};
  for (size_t f = box.size(); f-- > 0;) {
    const int64_t count = box[f].size(), stride = strides[f] * bytes;
    if (count == 1) continue;
    if (runs.counts.empty() && stride == runs.length) {
      runs.length *= count;
    } else if (!runs.counts.empty() && stride == runs.counts.back() * runs.strides.back()) {
      runs.counts.back() *= count;
    } else {
      runs.counts.push_back(count);
      runs.strides.push_back(stride);
    }
  }
  return {runs.start,
          runs.length,
          {runs.counts.rbegin(), runs.counts.rend()},
          {runs.strides.rbegin(), runs.strides.rend()}};
}

}  // namespace

int64_t Runs::count() const { return product_of(counts); }

int64_t Runs::start_of(int64_t run) const {
  int64_t place = start;
  for (size_t i = counts.size(); i-- > 0;) {
    place += (run % counts[i]) * strides[i];
    run /= counts[i];
  }
  return place;
}

Runs runs_of(const FactorSizes& factors, const Box& box, int64_t bytes) {
  const int64_t elements = product_of(factors);
  return runs_in({elements}, {{0, elements}}, factors, box, bytes);
}

Runs runs_in(const FactorSizes& shard_factors,
             const Box& shard,
             const FactorSizes& factors,
             const Box& box,
             int64_t bytes) {
  MEDLEY_CHECK_EQ(product_of(shard_factors), product_of(factors));
  MEDLEY_CHECK_EQ(box.size(), factors.size());
  for (size_t f = 0; f < factors.size(); ++f)
    MEDLEY_CHECK(0 <= box[f].begin && box[f].begin <= box[f].end && box[f].end <= factors[f]);
  if (volume(box) == 0) return {};
  std::vector<bool> is_cut(shard.size());
  for (size_t f = 0; f < shard.size(); ++f) is_cut[f] = shard[f].size() != shard_factors[f];
  const std::vector<MergedFactor> merged = merged_factors(shard_factors, is_cut);
  std::vector<int64_t> strides(factors.size());
  int64_t start = 0;
  int64_t inner = 1;  // elements of the shard in one step of a merged factor
  int64_t step = 1;   // elements of the value in one step of factor f - 1
  size_t f = factors.size();
  for (size_t m = merged.size(); m-- > 0;) {
    const IndexInterval have = interval_in(merged[m], shard);
    int64_t first = 0, last = 0;  // the box's part of it
    for (; f > 0 && step < merged[m].outer; --f) {
      const int64_t steps = step / merged[m].inner;
      strides[f - 1] = steps * inner;
      first += box[f - 1].begin * steps;
      last += (box[f - 1].end - 1) * steps;
      step *= factors[f - 1];
    }
    MEDLEY_CHECK_EQ(step, merged[m].outer);
    MEDLEY_CHECK(have.begin <= first && last < have.end);
    start += (first - have.begin) * inner;
    inner *= have.size();
  }
  return loops_over(box, strides, start, bytes);
}

}  // namespace medley
