#pragma once

// Flows of bytes that share links max-min fairly. Flows over the same links always have equal
// rates, so they form a bundle with one level: the bytes that a flow present from the beginning
// would have sent. A flow of b bytes that joins at level l ends at level l + b.
//
//   level |               . '     the slope is the rate, which changes when flows on links that
//         |          . ' -------- flow 2 ends                       bundles have in common do
//         |     . ' ------------- flow 1 ends
//         |   .'
//         | .'
//         +--------------------- time
//
// When flows join or end, rates are recomputed only for bundles connected with them through links
// in use. Levels and rates are integers, so the result is independent of when and where they are
// recomputed. All times equal those of sharing all flows of the cluster individually at every
// instant.
//
// Knows nothing of the senders and purposes of flows.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "medley/network/fair_share.h"
#include "medley/network/shared_pool.h"
#include "medley/network/topology.h"

namespace medley {

// Levels and remaining bytes are in units of 2^-46 bytes, rates in such units per ns. This allows
// links of up to 130 TB/s, at a resolution of 0.01 bytes per second.
inline constexpr int kUnitBits = 46;
// Times below 2^-10 ns are treated as rounding errors.
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
    int32_t first;                // flow that ends first: root of a skew heap
    int32_t count, shared_count;  // flows; flows when the rate was computed
    int32_t is_changed, is_found;
    uint64_t rate;
    int64_t since;  // time of `level`
    Units level;
  };
  struct Flow {
    Units end;  // level
    int32_t left, right;
  };

 public:
  // Location of the state. `num_flows`: largest flow number; the caller assigns numbers from 1 on.
  struct Memory {
    Memory(MemoryLayout& layout, int num_devices, int num_links, int32_t num_flows);
    Header* header;
    int32_t* of_pair;  // [from * devices + to], by first devices of nodes
    int32_t* on_link;  // [link] its first bundle
    Flow* flows;
    Pool<Bundle> bundles;
    int32_t* active;  // bundles, in any order
    int64_t* dues;    // [as active]
  };
  Bundles(const Memory& memory, const Topology& topology);

  // Requires of all: `now` never decreases; 0 < bytes; share() ends every instant with other calls.
  void begin(int32_t flow, int from, int to, int64_t bytes, int64_t now);
  // Appends the flows whose last byte leaves at `now`, in any order.
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
  // Kept to reuse their memory.
  std::vector<int32_t> changed_, connected_;  // bundles
  std::vector<int> found_links_;
  std::vector<uint8_t> is_found_;  // [link]
  std::vector<SharingFlows> sharing_;
  std::vector<int32_t> sharing_bundles_;
};

}  // namespace medley
