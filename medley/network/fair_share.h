#pragma once

// Max-min fair sharing of links (https://en.wikipedia.org/wiki/Max-min_fairness) by progressive
// filling: the rates of all flows grow together; when a link is full, the flows on it stop growing.
//
//   link 10: flow a, b      link 4: flow b, c      =>  b = c = 2, a = 8
//
// Capacities and rates are whole numbers of some small unit, and a share is rounded down to one:
// so the order of flows and links makes no difference, nor whether equal flows are counted or
// listed, nor what else is shared at the same time on other links.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace medley {

// So many flows over the same links.
struct SharingFlows {
  std::span<const int> links;  // indices into the capacities, none twice, at least one
  int64_t count = 1;           // at least 1
};

// For callers that ask again and again with the same capacities.
class FairShares {
 public:
  // Requires: 0 < capacities < 2^63.
  explicit FairShares(std::vector<uint64_t> capacities);
  // Returns the rate of each single flow, at least 1. The reference stays valid until the next
  // call.
  const std::vector<uint64_t>& rates(std::span<const SharingFlows> flows);

 private:
  struct Used {
    int link;
    uint64_t left;
    uint64_t growing;     // flows on the link that still grow
    uint64_t share;       // left / growing
    int32_t first, next;  // in on_link_
  };
  void index(std::span<const SharingFlows> flows);
  uint64_t find_full();

  std::vector<uint64_t> capacities_;
  std::vector<int32_t> place_;    // [link] in used_, -1: not used
  std::vector<Used> used_;        // links that any flow uses
  std::vector<int32_t> open_;     // those of them on which flows still grow
  std::vector<int32_t> full_;     // those with the least share
  std::vector<int32_t> on_link_;  // flows, link by link
  std::vector<uint64_t> rates_;
};

}  // namespace medley
