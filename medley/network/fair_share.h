#pragma once

// Max-min fair sharing of links (https://en.wikipedia.org/wiki/Max-min_fairness) by progressive
// filling. The rates of all flows grow together. If a link is full, its flows stop growing.
//
//   link 10: flow a, b      link 4: flow b, c      =>  b = c = 2, a = 8
//
// Capacities and rates are integers of a small unit, and shares are rounded down. The result is
// therefore independent of the order of flows and links, of how equal flows are grouped, and of
// other flows on other links.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace medley {

// A number of flows over the same links.
struct SharingFlows {
  std::span<const int> links;  // indices into the capacities, unique, at least one
  int64_t count = 1;           // at least 1
};

// Serves repeated calls with the same capacities.
class FairShares {
 public:
  // Requires: 0 < capacities < 2^63.
  explicit FairShares(std::vector<uint64_t> capacities);
  // Returns the rate of each single flow, at least 1. The reference is valid until the next call.
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
  std::vector<Used> used_;        // links used by any flow
  std::vector<int32_t> open_;     // those with growing flows
  std::vector<int32_t> full_;     // those with the least share
  std::vector<int32_t> on_link_;  // flows, link by link
  std::vector<uint64_t> rates_;
};

}  // namespace medley
