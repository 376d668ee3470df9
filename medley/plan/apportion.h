#pragma once

#include <cstdint>
#include <vector>

namespace medley {

// Divides `total` into integers in proportion to `shares` so that max(length / share) is smallest:
// if the shares are speeds, the slowest device is done as early as possible. Ties go to the lower
// index; a share of zero gets zero.
// Requires: total >= 0, no share negative, one of them positive unless total is 0.
std::vector<int64_t> apportion(int64_t total, const std::vector<double>& shares);

}  // namespace medley
