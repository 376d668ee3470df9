#pragma once

// Times of collective algorithms without their messages: closed forms of estimate() of
// collectives.h, summed by link. For groups of hundreds of devices and planners with thousands of
// queries. With load(l, r) the bytes on link l in round r,
//
//   time = sum over rounds r of max over links l with load(l, r) > 0 of
//              latency(l) + load(l, r) / bandwidth(l)
//
// All paths over a link have the latency of its network. A reduce-scatter loads the links like its
// reversed all-gather, in the other direction; an all-reduce does both.

#include "medley/network/collectives.h"

namespace medley {

// Returns the value of estimate(messages(algorithm, ...), ...). Cost for n devices in k nodes: ring
// n^2 (n for equal lengths or unshared connections), direct n + k * pools, hierarchical k^2 + n *
// devices of a node. All-to-all of equal blocks on identical nodes costs n * devices of a node, the
// others one per message.
Nanoseconds estimate(const Algorithm& algorithm,
                     const Collective& collective,
                     const Topology& topology);

// Returns the bytes over each link, [link], of the messages.
std::vector<int64_t> traffic(const Algorithm& algorithm,
                             const Collective& collective,
                             const Topology& topology);

struct CheapestEstimate {
  const Algorithm* algorithm = nullptr;
  Nanoseconds time;
};
// Returns the result of cheapest(): the algorithm of the topology's library, else the first one
// with the lowest estimate. Skips algorithms that cannot win: all-to-all other than all at once,
// padding, and broadcasts that carry no more per round than the ring.
CheapestEstimate cheapest_estimate(const Collective& collective, const Topology& topology);

}  // namespace medley
