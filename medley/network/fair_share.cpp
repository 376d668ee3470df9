#include "medley/network/fair_share.h"

#include <cstddef>
#include <limits>

#include "medley/base/error.h"

namespace medley {

std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<const Links*>& flows) {
  struct State {
    double left;
    int growing = 0;  // flows on the link that still grow
  };
  std::vector<State> states;
  std::vector<int> used;                                   // links that any flow uses
  std::vector<size_t> place(capacities.size(), SIZE_MAX);  // of a link in `used`
  for (const Links* links : flows) {
    MEDLEY_CHECK(!links->empty());
    for (int link : *links) {
      size_t& at = place[static_cast<size_t>(link)];
      if (at == SIZE_MAX) {
        at = used.size();
        used.push_back(link);
        states.push_back({capacities[static_cast<size_t>(link)]});
      }
      ++states[at].growing;
    }
  }
  std::vector<double> rates(flows.size(), -1);
  for (size_t open = flows.size(); open > 0;) {
    size_t tightest = 0;
    double share = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].growing == 0) continue;
      const double each = states[i].left / states[i].growing;
      if (each < share) share = each, tightest = i;
    }
    for (size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] >= 0) continue;
      bool on_tightest = false;
      for (int link : *flows[i]) on_tightest |= link == used[tightest];
      if (!on_tightest) continue;
      rates[i] = share;
      --open;
      for (int link : *flows[i]) {
        State& state = states[place[static_cast<size_t>(link)]];
        state.left -= share;
        --state.growing;
      }
    }
  }
  return rates;
}

}  // namespace medley
