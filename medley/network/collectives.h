#pragma once

// Collective communications as rounds of messages: pure functions of kind, lengths and devices. The
// cost model, the emulator and the simulator all use these; the transports of PyTorch do not. A
// device enters a round when it has received and sent everything of the round before.
//
// The whole of a collective is a range of bytes; a message carries [begin, begin + length) of it:
//
//   kind            whole                      a device starts with      it ends with
//   all-reduce      the buffer                 its own whole             the sum
//   all-gather      chunk 0, chunk 1, ...      chunk i                   the whole
//   reduce-scatter  chunk 0, chunk 1, ...      its own whole             the sum of chunk i
//   all-to-all      block 0->0, 0->1, ...      blocks i->j, all j        blocks j->i, all j
//
// A relay is two all-to-alls in a row. All-gather is the only one that has algorithms of its own
// for sums: played backwards, with every arrow turned round, it is a reduce-scatter (each device
// receives a byte once before it passes it on; backwards it sums before it passes on), and
// all-reduce is the two in a row.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/communication_kind.h"
#include "medley/base/units.h"
#include "medley/network/flow_engine.h"
#include "medley/network/topology.h"

namespace medley {

struct Collective {
  // A transfer is an all-to-all of the devices of both stages here.
  CommunicationKind kind = CommunicationKind::kAllReduce;
  std::vector<int> devices;      // of the cluster; messages name them by their index in here
  std::vector<int64_t> lengths;  // bytes, num_lengths() of them. all-reduce: {whole}; all-gather,
                                 // reduce-scatter: [device]; all-to-all: [from * devices + to];
                                 // relay: those of one all-to-all, then of the other
  int64_t granule = 1;  // no message ends inside an element of so many bytes; divides all lengths
  bool operator==(const Collective&) const = default;
};

// Returns the all-to-alls that a relay is; of other kinds, it.
std::vector<Collective> in_turn(const Collective& collective);

struct Message {
  int round = 0;
  int from = 0, to = 0;  // indices into Collective::devices, never equal
  int64_t begin = 0;     // of the range of the whole that it carries
  int64_t length = 0;
  int64_t bytes = 0;    // on the wire: the length, or more if padded
  bool reduce = false;  // the receiver adds the range to what it has, else replaces
  bool operator==(const Message&) const = default;
};

// Which device is in which node, by index into Collective::devices. All that an algorithm may know
// of the cluster.
struct Grouping {
  std::vector<int> node;  // [device] numbers from 0 in order of first appearance
};
Grouping group_by_node(const Collective& collective, const Topology& topology);

struct Algorithm {
  std::string_view name;
  std::string_view help;
  bool for_all_to_all;  // and relays; else for the three others
  bool hierarchical;    // differs from the others only if some but not all devices share a node
  std::vector<Message> (*messages)(const std::vector<int64_t>& lengths,
                                   int num_devices,
                                   int64_t granule,
                                   const Grouping& grouping);
};
const std::vector<Algorithm>& algorithms();
// Whether the algorithm can carry a communication of the kind.
bool fits(const Algorithm& algorithm, CommunicationKind kind);

// Cuts `whole` bytes into one chunk per device, as even as elements allow.
std::vector<int64_t> even_chunks(int64_t whole, int num_devices, int64_t granule);
// Returns the lengths that an algorithm gets: of an all-gather's chunks or an all-to-all's blocks.
std::vector<int64_t> gathered(const Collective& collective);

// Returns the messages in order of rounds; none is empty. Requires: the algorithm fits the kind.
std::vector<Message> messages(const Algorithm& algorithm,
                              const Collective& collective,
                              const Grouping& grouping);

// Returns what each member sends and receives, [member].
std::vector<std::vector<RoundStep>> steps_of_members(std::span<const Message> messages,
                                                     const std::vector<int>& devices);

// Returns the time if nothing else uses the network: each round takes, on its slowest message, the
// latency plus the time of the most loaded link on the way. Of FlowEngine's time it misses that
// devices enter rounds one by one, and that fair sharing may leave a link idle for a while.
Nanoseconds estimate(std::span<const Message> messages,
                     const Collective& collective,
                     const Topology& topology);

struct CheapestAlgorithm {
  const Algorithm* algorithm = nullptr;
  Nanoseconds time;
  std::vector<Message> messages;
};
// Returns the algorithm with the lowest estimate, the first among equals; or what the topology's
// library runs.
CheapestAlgorithm cheapest(const Collective& collective, const Topology& topology);

}  // namespace medley
