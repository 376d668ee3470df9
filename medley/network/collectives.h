#pragma once

// Collective communications as rounds of messages: pure functions of type, lengths and devices. The
// cost model, the emulator and the simulator use them; the transports of PyTorch do not. A device
// enters a round after it has received and sent everything of the round before.
//
// A collective's whole is a range of bytes; a message carries [begin, begin + length) of it:
//
//    kind            whole                      a device starts with      it ends with
//    all-reduce      the buffer                 its own whole             the sum
//    all-gather      chunk 0, chunk 1, ...      chunk i                   the whole
//    reduce-scatter  chunk 0, chunk 1, ...      its own whole             the sum of chunk i
//    all-to-all      block 0->0, 0->1, ...      blocks i->j, all j        blocks j->i, all j
//
// A gradient sync (gradient sync between pipelines) is two all-to-alls in sequence. All-gather is
// reversed in time and direction for reduce-scatter: each device receives a byte once before it
// forwards it, so in reverse it sums before it forwards. All-reduce is both in sequence.

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
  // A transfer is an all-to-all of the devices of both stages.
  CommunicationKind kind = CommunicationKind::kAllReduce;
  std::vector<int> devices;      // in the cluster; messages use indices into it
  std::vector<int64_t> lengths;  // bytes, num_lengths() of them. all-reduce: {whole}; all-gather,
                                 // reduce-scatter: [device]; all-to-all: [from * devices + to];
                                 // gradient sync: those of one all-to-all, then of the other
  int64_t granule = 1;           // element size in bytes; divides all lengths and messages
  bool operator==(const Collective&) const = default;
};

// Returns the two all-to-alls of a gradient sync, else the collective itself.
std::vector<Collective> in_turn(const Collective& collective);

struct Message {
  int round = 0;
  int from = 0, to = 0;  // indices into Collective::devices, never equal
  int64_t begin = 0;     // start of its range in the whole
  int64_t length = 0;
  int64_t bytes = 0;    // on the wire: the length, or more if padded
  bool reduce = false;  // the receiver adds the range to its own, else replaces it
  bool operator==(const Message&) const = default;
};

// Node of each device, by index into Collective::devices. Algorithms see nothing else of the
// cluster.
struct Grouping {
  std::vector<int> node;  // [device] numbers from 0 in order of first appearance
};
Grouping group_by_node(const Collective& collective, const Topology& topology);

struct Algorithm {
  std::string_view name;
  std::string_view help;
  bool for_all_to_all;  // and gradient syncs; else for the other three
  bool hierarchical;    // differs only if some, not all, devices share a node
  std::vector<Message> (*messages)(const std::vector<int64_t>& lengths,
                                   int num_devices,
                                   int64_t granule,
                                   const Grouping& grouping);
};
const std::vector<Algorithm>& algorithms();
// Returns whether the algorithm supports communications of `kind`.
bool fits(const Algorithm& algorithm, CommunicationKind kind);

// Cuts `whole` bytes into one chunk per device, as even as elements allow.
std::vector<int64_t> even_chunks(int64_t whole, int num_devices, int64_t granule);
// Returns the lengths for an algorithm: an all-gather's chunks or an all-to-all's blocks.
std::vector<int64_t> gathered(const Collective& collective);

// Returns non-empty messages in order of rounds. Requires: the algorithm fits the kind.
std::vector<Message> messages(const Algorithm& algorithm,
                              const Collective& collective,
                              const Grouping& grouping);

// Returns the messages that each member sends and receives, [member].
std::vector<std::vector<RoundStep>> steps_of_members(std::span<const Message> messages,
                                                     const std::vector<int>& devices);

// Returns the time on an idle network. Each round takes, on its slowest message, the latency plus
// the time of the most loaded link on its path. Unlike FlowEngine, it ignores that devices enter
// rounds one by one and that fair sharing may leave a link partly idle.
Nanoseconds estimate(std::span<const Message> messages,
                     const Collective& collective,
                     const Topology& topology);

struct CheapestAlgorithm {
  const Algorithm* algorithm = nullptr;
  Nanoseconds time;
  std::vector<Message> messages;
};
// Returns the algorithm of the topology's library, else the first one with the lowest estimate.
CheapestAlgorithm cheapest(const Collective& collective, const Topology& topology);

}  // namespace medley
