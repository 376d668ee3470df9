#include "medley/network/fair_share.h"

#include <cstddef>
#include <limits>

#include "medley/base/error.h"

namespace medley {

std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<std::vector<int>>& flows) {
  std::vector<double> left = capacities;
  std::vector<int> growing(capacities.size(), 0);  // flows on each link that still grow
  for (const auto& links : flows) {
    MEDLEY_CHECK(!links.empty());
    for (int link : links) ++growing[static_cast<size_t>(link)];
  }
  std::vector<double> rates(flows.size(), -1);
  for (size_t open = flows.size(); open > 0;) {
    size_t tightest = capacities.size();
    double share = std::numeric_limits<double>::infinity();
    for (size_t link = 0; link < capacities.size(); ++link) {
      if (growing[link] == 0) continue;
      const double each = left[link] / growing[link];
      if (each < share) share = each, tightest = link;
    }
    for (size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] >= 0) continue;
      bool on_tightest = false;
      for (int link : flows[i]) on_tightest |= static_cast<size_t>(link) == tightest;
      if (!on_tightest) continue;
      rates[i] = share;
      --open;
      for (int link : flows[i]) {
        left[static_cast<size_t>(link)] -= share;
        --growing[static_cast<size_t>(link)];
      }
    }
  }
  return rates;
}

}  // namespace medley
