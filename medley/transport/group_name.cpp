#include "medley/transport/group_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace medley {

std::string group_name(std::vector<int> devices, int generation) {
  std::sort(devices.begin(), devices.end());
  return fmt::format("medley/{}/{}", generation, fmt::join(devices, ","));
}

}  // namespace medley
