#pragma once

// What the pieces of a stage cost, each distinct one priced once: segments by kind of device and
// the lengths that they depend on, communications by the lengths that their members exchange. Knows
// nothing of when they run, nor, of what stages exchange, more than its own stage does.

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

// Adds those on whose values it depends what an op takes.
void add_symbols_of_work(const Graph& graph, const Op& op, std::set<Symbol>& symbols);

struct SegmentPrice {
  Nanoseconds time;                // the sum over its ops
  std::vector<Nanoseconds> ends;   // [op] when it is done, from the segment's start
  std::vector<int> ops_by_source;  // [CostSource] how many of them take time
};

class SegmentPrices {
 public:
  // Requires: both outlive this.
  SegmentPrices(const LoweredStage& stage, const CostModel& costs);
  // `device`: of the mesh. The reference stays valid.
  const SegmentPrice& price(const Segment& segment, int microbatch, int device);

 private:
  // What the work of a segment depends on, and its prices.
  struct Known {
    // Devices that agree in the values of these take equally long. (All differ in others, such as
    // where their shards start.)
    std::vector<Symbol> symbols;
    std::map<std::pair<std::string, std::vector<int64_t>>, SegmentPrice> prices;  // by kind, values
    struct Last {
      const std::vector<int64_t>* values = nullptr;  // of the symbols
      const SegmentPrice* price = nullptr;
    };
    std::vector<Last> last;  // [device] most micro-batches are like the one before
  };
  Known& known(const Segment& segment);

  const LoweredStage& stage_;
  const CostModel& costs_;
  std::unordered_map<const Segment*, Known> known_;  // looked up only
};

// Where a device stands among the members of a group. Requires: it is one of them.
int position_of(const std::vector<int>& devices, int device);

// How long the bytes occupy a link that they have for themselves.
Nanoseconds occupancy(const Link& link, int64_t bytes);

// One communication among its members.
struct Exchanges {
  std::vector<int> devices;                            // of the cluster
  int num_senders = 0;                                 // of a transfer: the first so many of them
  Nanoseconds estimate;                                // alone in the network
  std::vector<std::pair<int, int64_t>> bytes_by_link;  // (link, bytes), those that are used
  int64_t num_messages = 0;
  std::vector<std::vector<RoundStep>> steps;  // [member], if wanted
};

class CommunicationPrices {
 public:
  // `with_messages`: fill Exchanges::steps. Requires: both outlive this.
  CommunicationPrices(const LoweredStage& stage,
                      const CostModel& costs,
                      bool with_messages = false);
  // Communication `index` of the stage for the group that `device`, of the mesh, is in. The
  // reference stays valid.
  const Exchanges& exchanges(int index, int microbatch, int device);
  // How long that takes while all groups along its axis do the same.
  Nanoseconds with_others(int index, int microbatch, int device);
  // The first micro-batch in which all devices exchange as much as in this one.
  int first_alike(int microbatch) const { return first_alike_[at(microbatch)]; }
  // Whether so many devices of the mesh, ascending, that come to it at the same time are through
  // with it at the same time, if it takes what it is estimated to: all are in one group with
  // others, or they are whole groups.
  bool do_the_same(int index, const std::vector<int>& devices);
  // Which member of that group the device is.
  int member(int index, int device) const;
  // `members` of the mesh: the group, or, of a communication between stages, this stage's devices.
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
      known_;                     // the number: of senders
  std::vector<int> first_alike_;  // [microbatch]
  std::map<std::tuple<int, int, int>, const Exchanges*>
      found_;  // (index, the first micro-batch alike, first member)
};
// What is found stays where it is when a vector of them grows.
static_assert(std::is_nothrow_move_constructible_v<CommunicationPrices>);

// Returns at least as many posts and messages as a step has.
struct NetworkSize {
  int64_t posts = 0, messages = 0;
  int64_t between_stages = 0;  // of the messages
};
NetworkSize network_size(const Program& program);

}  // namespace medley
