#include "medley/boxes/box.h"

#include <fmt/format.h>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// Splits the factors from `first` on; `inside` of their elements are one step of the factor before.
void split_from(size_t first,
                int64_t inside,
                const IndexInterval& interval,
                const FactorSizes& finer,
                Box& outer,
                std::vector<Box>& found) {
  if (interval.size() == 0) return;
  if (first == finer.size()) {
    found.push_back(outer);
    return;
  }
  const int64_t step = inside / finer[first];
  const auto in_one = [&](int64_t index, int64_t begin, int64_t end) {
    outer.push_back({index, index + 1});
    split_from(first + 1, step, {begin, end}, finer, outer, found);
    outer.pop_back();
  };
  int64_t from = interval.begin / step;
  const int64_t to = interval.end / step;
  const int64_t head = interval.begin % step, tail = interval.end % step;
  if (from == to) return in_one(from, head, tail);
  if (head > 0) in_one(from++, head, step);
  if (from < to) {
    outer.push_back({from, to});
    Box box = outer;
    for (size_t i = first + 1; i < finer.size(); ++i) box.push_back({0, finer[i]});
    found.push_back(std::move(box));
    outer.pop_back();
  }
  if (tail > 0) in_one(to, 0, tail);
}

}  // namespace

int64_t product_of(const FactorSizes& factors) {
  int64_t product = 1;
  for (int64_t size : factors) product *= size;
  return product;
}

int64_t volume(const Box& box) {
  int64_t elements = 1;
  for (const IndexInterval& interval : box) elements *= interval.size();
  return elements;
}

Box whole_box(const FactorSizes& factors) {
  Box box;
  for (int64_t size : factors) box.push_back({0, size});
  return box;
}

std::string to_string(const Box& box) {
  std::string text;
  for (const IndexInterval& interval : box)
    text += fmt::format("{}[{}, {})", text.empty() ? "" : " x ", interval.begin, interval.end);
  return text.empty() ? "one element" : text;
}

std::vector<Box> split(const IndexInterval& interval, const FactorSizes& finer) {
  const int64_t elements = product_of(finer);
  MEDLEY_CHECK(0 <= interval.begin && interval.begin <= interval.end && interval.end <= elements);
  std::vector<Box> found;
  Box outer;
  split_from(0, elements, interval, finer, outer, found);
  return found;
}

std::vector<MergedFactor> merged_factors(const FactorSizes& factors,
                                         const std::vector<bool>& is_cut) {
  std::vector<MergedFactor> merged;
  int64_t stride = 1, inner = 1;
  for (size_t i = factors.size(); i-- > 0;) {
    MEDLEY_CHECK(factors[i] > 0);
    const int64_t outer = stride * factors[i];
    if (is_cut[i]) {
      merged.push_back({outer, inner, static_cast<int>(i), stride});
      inner = outer;
    }
    stride = outer;
  }
  if (inner < stride || merged.empty()) merged.push_back({stride, inner, -1, inner});
  return {merged.rbegin(), merged.rend()};
}

IndexInterval interval_in(const MergedFactor& merged, const Box& box) {
  if (merged.cut < 0) return {0, merged.outer / merged.inner};
  const int64_t each = merged.stride / merged.inner;
  return {box[at(merged.cut)].begin * each, box[at(merged.cut)].end * each};
}

}  // namespace medley
