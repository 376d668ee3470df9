#pragma once

// The elements of a value that a device stores. A value is a product of factors, the outermost
// first, as in row-major memory. A box is one interval per factor:
//
//   columns of q, k and v in a fused weight   factors 3 x 4 x 2, heads 1 and 2 of all three
//   [0, 3) x [1, 3) x [0, 2)                  . . # # # # . . | . . # # # # . . | . . # # # # . .
//
// Dims do not appear: their factors follow one another. Knows no devices and no dtypes.

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

using FactorSizes = std::vector<int64_t>;  // outermost first

struct IndexInterval {
  int64_t begin = 0, end = 0;  // [begin, end)
  int64_t size() const { return end - begin; }
  auto operator<=>(const IndexInterval&) const = default;
};

using Box = std::vector<IndexInterval>;  // [factor]

int64_t product_of(const FactorSizes& factors);
int64_t volume(const Box& box);  // in elements
Box whole_box(const FactorSizes& factors);
std::string to_string(const Box& box);  // "[0, 4) x [2, 3)"

// Splits an interval of a factor into boxes of the finer factors whose product it is. Returns at
// most 2 d - 1 boxes for d factors, one if the ends are multiples of the inner factors. Row-major
// order, no empty box. Requires: an interval inside the product.
std::vector<Box> split(const IndexInterval& interval, const FactorSizes& finer);

// Factors merged as far as cuts allow: a cut factor starts a new one, which includes all whole
// factors that follow. Element e has the index e % outer / inner in it.
struct MergedFactor {
  int64_t outer = 1, inner = 1;
  int cut = -1;        // the cut factor; -1: none, in front of all cut ones
  int64_t stride = 1;  // elements per index of that factor
};
// Requires: no factor of size 0.
std::vector<MergedFactor> merged_factors(const FactorSizes& factors,
                                         const std::vector<bool>& is_cut);
IndexInterval interval_in(const MergedFactor& merged, const Box& box);

}  // namespace medley
