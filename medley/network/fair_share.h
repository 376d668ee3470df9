#pragma once

// Max-min fair sharing of links (https://en.wikipedia.org/wiki/Max-min_fairness) by progressive
// filling: the rates of all flows grow together; when a link is full, the flows on it stop growing.
//
//   link 10: flow a, b      link 4: flow b, c      =>  b = c = 2, a = 8

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace medley {

using Links = std::vector<int>;  // indices into `capacities`, none twice, at least one

// Returns the rate of every flow. Requires: capacities > 0. The result depends on the order of the
// flows in the last bit only: callers that compare times keep one order.
std::vector<double> max_min_rates(const std::vector<double>& capacities,
                                  const std::vector<const Links*>& flows);

// The same for callers that ask again and again with the same capacities.
class FairShares {
 public:
  explicit FairShares(std::vector<double> capacities);
  // The reference stays valid until the next call.
  const std::vector<double>& rates(std::span<const std::span<const int>> flows);

 private:
  struct Used {
    int link;
    double left;
    int growing;          // flows on the link that still grow
    int32_t first, next;  // in on_link_
  };
  void index(std::span<const std::span<const int>> flows);
  size_t tightest(double& share) const;

  std::vector<double> capacities_;
  std::vector<int32_t> place_;    // [link] in used_, -1: not used
  std::vector<Used> used_;        // links that any flow uses
  std::vector<int32_t> on_link_;  // flows, link by link
  std::vector<double> rates_;
};

}  // namespace medley
