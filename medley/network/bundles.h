#pragma once

// Flows of bytes that share links max-min fairly. Flows over the same links have the same rate at
// all times: they are a bundle, of which only the level is kept, what each of its flows would have
// sent if it had been there from the beginning. A flow of b bytes that joins at level l ends at
// level l + b.
//
//   level |               . '     the slope is the rate, which changes when flows on links that
//         |          . ' -------- flow 2 ends                       bundles have in common do
//         |     . ' ------------- flow 1 ends
//         |   .'
//         | .'
//         +--------------------- time
//
// When flows have come or gone, rates are found anew for the bundles that are connected with them
// through links in use, and for no others. Levels and rates are whole numbers, so that this, and
// when it is done, makes no difference: all times are equal to those of all flows of the cluster
// shared at every instant, one by one.
//
// Knows nothing of who sends what and why.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "medley/network/fair_share.h"
#include "medley/network/shared_pool.h"
#include "medley/network/topology.h"

namespace medley {

// Levels and what is left of flows are in units of 2^-46 bytes, rates in such units per nanosecond:
// links of up to 130 TB/s, at a resolution of 0.01 bytes per second.
inline constexpr int kUnitBits = 46;
// What takes less than 2^-10 nanoseconds is rounding, not time.
inline constexpr int kRoundingBits = 10;
// Returns the capacities of all links.
std::vector<uint64_t> link_rates(const Topology& topology);

class Bundles {
  using Units = unsigned __int128;
  struct Header {
    int32_t num_active;
  };
  struct Bundle {
    int32_t next;
    int32_t links[3];
    int32_t num_links;
    int32_t before[3], after[3];  // bundles on the same link
    int32_t pair;                 // in of_pair
    int32_t place;                // in active
    int32_t first;                // the flow that ends first: the root of a skew heap
    int32_t count, shared_count;  // flows; flows when the rate was found
    int32_t is_changed, is_found;
    uint64_t rate;
    int64_t since;  // when the level was that
    Units level;
  };
  struct Flow {
    Units end;  // level
    int32_t left, right;
  };

 public:
  // Where all of it is kept. `num_flows`: numbers from 1 on, which the caller gives.
  struct Memory {
    Memory(MemoryLayout& layout, int num_devices, int num_links, int32_t num_flows);
    Header* header;
    int32_t* of_pair;  // [from * devices + to], with the first device of a node for the others
    int32_t* on_link;  // [link] the first of its bundles
    Flow* flows;
    Pool<Bundle> bundles;
    int32_t* active;  // bundles, in any order
    int64_t* dues;    // [as active]
  };
  Bundles(const Memory& memory, const Topology& topology);

  // Requires of all: `now` never decreases; 0 < bytes; share() ends every instant in which anything
  // else was called.
  void begin(int32_t flow, int from, int to, int64_t bytes, int64_t now);
  // Appends the flows whose last byte leaves now, in any order.
  void take_ended(int64_t now, std::vector<int32_t>& ended);
  void remove(const std::function<bool(int32_t flow)>& is_gone, int64_t now);
  void share(int64_t now);
  // Returns the earliest end of a flow, or int64's largest.
  int64_t next_end() const;

 private:
  int32_t find(int from, int to);
  static size_t place_on(const Bundle& bundle, int link);
  int32_t& before_on(int32_t index, int link);
  int32_t& after_on(int32_t index, int link);
  void settle(Bundle& bundle, int64_t now);
  void change(int32_t index);
  int32_t meld(int32_t a, int32_t b);
  void find_connected(int32_t start);
  void find_bundle(int32_t index);
  void share_connected(int64_t now);
  void drop(int32_t index);

  Memory memory_;
  const Topology& topology_;
  std::vector<int> representative_;  // [device] the first one of its node
  FairShares shares_;
  // Kept for their memory.
  std::vector<int32_t> changed_, connected_;  // bundles
  std::vector<int> found_links_;
  std::vector<uint8_t> is_found_;  // [link]
  std::vector<SharingFlows> sharing_;
  std::vector<int32_t> sharing_bundles_;
};

}  // namespace medley
