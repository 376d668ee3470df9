#pragma once

// Which elements of a value somebody has. A value is a product of factors, the outermost first, as
// it lies in row-major memory; a box is an interval of each:
//
//   columns of q, k and v in a fused weight   factors 3 x 4 x 2, heads 1 and 2 of all three
//   [0, 3) x [1, 3) x [0, 2)                  . . # # # # . . | . . # # # # . . | . . # # # # . .
//
// Dims are gone: what they are made of lies one after the other. Knows no devices and no dtypes.

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
int64_t volume(const Box& box);  // elements
Box whole_box(const FactorSizes& factors);
std::string to_string(const Box& box);  // "[0, 4) x [2, 3)"

// An interval of a factor as boxes of the finer factors that it is the product of: no more than
// 2 d - 1 of d factors, one where the ends are multiples of what lies inside. In row-major order,
// none empty. Requires: an interval inside the product.
std::vector<Box> split(const IndexInterval& interval, const FactorSizes& finer);

// Factors merged as far as it is known which of them are cut: one that is cut starts a new one, to
// which all that follow and are whole belong. Of element e the index in it is e % outer / inner.
struct MergedFactor {
  int64_t outer = 1, inner = 1;
  int cut = -1;        // which factor that is; -1: none, in front of all that are
  int64_t stride = 1;  // elements per index of that factor
};
// Requires: no factor of size 0.
std::vector<MergedFactor> merged_factors(const FactorSizes& factors,
                                         const std::vector<bool>& is_cut);
IndexInterval interval_in(const MergedFactor& merged, const Box& box);

}  // namespace medley
