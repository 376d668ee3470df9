#pragma once

// Prices each distinct piece of a stage once: segments by device type and relevant lengths,
// communications by the lengths exchanged. Knows nothing of when they run, and no stage but its
// own.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "medley/base/at.h"
#include "medley/cost/cost_model.h"
#include "medley/network/collectives.h"
#include "medley/network/flow_engine.h"
#include "medley/program/program.h"

namespace medley {

// Adds the symbols whose values determine an op's time.
void add_symbols_of_work(const Graph& graph, const Op& op, std::set<Symbol>& symbols);

struct SegmentPrice {
  Nanoseconds time;                // the sum over its ops
  std::vector<Nanoseconds> ends;   // [op] its end, from the segment's start
  std::vector<int> ops_by_source;  // [CostSource] number of ops that take time
};

class SegmentPrices {
 public:
  // Requires: both outlive this.
  SegmentPrices(const LoweredStage& stage, const CostModel& costs);
  // `device`: of the mesh. The reference stays valid.
  const SegmentPrice& price(const Segment& segment, int microbatch, int device);

 private:
  // Symbols that a segment's work depends on, and its prices.
  struct Known {
    // Devices with equal values of these take equally long. Other symbols, such as shard offsets,
    // differ on each device.
    std::vector<Symbol> symbols;
    std::map<std::pair<std::string, std::vector<int64_t>>, SegmentPrice> prices;  // by kind, values
    struct Last {
      const std::vector<int64_t>* values = nullptr;  // its symbols' values
      const SegmentPrice* price = nullptr;
    };
    std::vector<Last> last;  // [device] most micro-batches repeat it
  };
  Known& known(const Segment& segment);

  const LoweredStage& stage_;
  const CostModel& costs_;
  std::unordered_map<const Segment*, Known> known_;  // looked up only
};

// Returns the device's index in the group. Requires: it is one of them.
int position_of(const std::vector<int>& devices, int device);

// Returns the time for which the bytes occupy an otherwise idle link.
Nanoseconds occupancy(const Link& link, int64_t bytes);

// One communication among its members.
struct Exchanges {
  std::vector<int> devices;                            // in the cluster
  int num_senders = 0;                                 // for a transfer: its first members
  Nanoseconds estimate;                                // on an idle network
  std::vector<std::pair<int, int64_t>> bytes_by_link;  // (link, bytes) of used links
  int64_t num_messages = 0;
  std::vector<std::vector<RoundStep>> steps;  // [member], if requested
};

class CommunicationPrices {
 public:
  // `with_messages`: fill Exchanges::steps. Requires: both outlive this.
  CommunicationPrices(const LoweredStage& stage,
                      const CostModel& costs,
                      bool with_messages = false);
  // Returns communication `index` of the stage for the group of `device`, of the mesh. The
  // reference stays valid.
  const Exchanges& exchanges(int index, int microbatch, int device);
  // Returns its time while all groups along its axis do the same.
  Nanoseconds with_others(int index, int microbatch, int device);
  // Returns the first micro-batch in which all devices exchange as much as in this one.
  int first_identical(int microbatch) const { return first_identical_[at(microbatch)]; }
  // Returns whether `devices` of the mesh (ascending) that start communication `index` together
  // also finish together under its estimate: they are in one group with others, or form whole
  // groups.
  bool are_identical(int index, const std::vector<int>& devices);
  // Returns the index of the device in that group.
  int member(int index, int device) const;
  // `members` of the mesh: the group or, between stages, this stage's devices.
  Collective collective(const Communication& communication,
                        int microbatch,
                        const std::vector<int>& members) const;

 private:
  std::vector<int64_t> lengths_of_messages(const Communication& communication,
                                           int microbatch,
                                           const std::vector<int>& members,
                                           int64_t granule) const;
  Exchanges exchanges(const Collective& collective) const;

  const LoweredStage& stage_;
  const CostModel& costs_;
  bool with_messages_;
  std::map<std::tuple<CommunicationKind, int, std::vector<int>, std::vector<int64_t>>, Exchanges>
      known_;                         // the number: of senders
  std::vector<int> first_identical_;  // [microbatch]
  std::map<std::tuple<int, int, int>, const Exchanges*>
      found_;  // (index, first equal micro-batch, first member)
};
// Growing a vector must not move found entries.
static_assert(std::is_nothrow_move_constructible_v<CommunicationPrices>);

// Returns upper bounds of posts and messages per step.
struct NetworkSize {
  int64_t posts = 0, messages = 0;
  int64_t between_stages = 0;  // part of `messages`
};
NetworkSize network_size(const Program& program);

}  // namespace medley
