#pragma once

#include <cstdint>
#include <vector>

namespace medley {

// Divides `total` rows among devices with times fixed[i] + rows * per_row[i] and minimises the
// largest time; ties go to the lower index. A device may get none. Requires: total >= 0, fixed >=
// 0, per_row > 0, at least one device.
std::vector<int64_t> balance(int64_t total,
                             const std::vector<double>& fixed,
                             const std::vector<double>& per_row);

}  // namespace medley
