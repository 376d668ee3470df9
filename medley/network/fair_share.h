#pragma once

// Max-min fair sharing of links (https://en.wikipedia.org/wiki/Max-min_fairness) by progressive
// filling: the rates of all flows grow together; when a link is full, the flows on it stop growing.
//
//   link 10: flow a, b      link 4: flow b, c      =>  b = c = 2, a = 8

#include <vector>

namespace medley {

// Returns the rate of every flow. `flows[i]` are the links that flow i uses, indices into
// `capacities`, none twice. Requires: capacities > 0; every flow uses at least one link. The result
// depends on the order of the flows in the last bit only: callers that compare times keep one
// order.
std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<std::vector<int>>& flows);

}  // namespace medley
