#pragma once

// Max-min fair sharing of links (https://en.wikipedia.org/wiki/Max-min_fairness) by progressive
// filling: the rates of all flows grow together; when a link is full, the flows on it stop growing.
//
//   link 10: flow a, b      link 4: flow b, c      =>  b = c = 2, a = 8

#include <vector>

namespace medley {

using Links = std::vector<int>;  // indices into `capacities`, none twice, at least one

// Returns the rate of every flow. Requires: capacities > 0. The result depends on the order of the
// flows in the last bit only: callers that compare times keep one order.
std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<const Links*>& flows);

}  // namespace medley
