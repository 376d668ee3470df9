#pragma once

// Times of collective algorithms without their messages: the equations that estimate() of
// collectives.h follows message by message, summed up by link. For groups of hundreds of devices
// and planners that ask thousands of times. With load(l, r) the bytes on link l in round r,
//
//   time = sum over rounds r of max over links l with load(l, r) > 0 of
//              latency(l) + load(l, r) / bandwidth(l)
//
// since all paths over a link have the latency of its network. A reduce-scatter loads the links as
// the all-gather that it is backwards, in the other direction; an all-reduce is both.

#include "medley/network/collectives.h"

namespace medley {

// Equal to estimate(messages(algorithm, ...), ...). Of n devices in k nodes: ring n^2 (n, if all
// lengths are equal or no connection shares a link), direct n + k * pools, hierarchical
// k^2 + n * devices of a node; all-to-all of equal blocks n * devices of a node, if nodes are all
// alike; the others as many as there are messages.
Nanoseconds estimate(const Algorithm& algorithm,
                     const Collective& collective,
                     const Topology& topology);

// Bytes over each link, [link], as of the messages.
std::vector<int64_t> traffic(const Algorithm& algorithm,
                             const Collective& collective,
                             const Topology& topology);

struct CheapestEstimate {
  const Algorithm* algorithm = nullptr;
  Nanoseconds time;
};
// Equal to cheapest(): the algorithm that the topology's library runs, else the one with the lowest
// estimate, the first among equals. Leaves out
// what cannot win: all-to-all other than all at once, padding, and broadcasts that carry no more
// per round than the ring.
CheapestEstimate cheapest_estimate(const Collective& collective, const Topology& topology);

}  // namespace medley
