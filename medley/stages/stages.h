#pragma once

// Assigns ops to the stages of a pipeline. The forward ops form a sequence; a cut is a position in
// it and determines the stage of every other op:
//
//   forward     a   b   c | d   e   f     | is a cut: positions 0 .. 2 are stage 0
//   backward    a'  b'  c' | d'  e'  f'
//
//   backward op   at the highest position at which all operands are available: a forward value from
//                 its producer to its last forward reader, a gradient from its producer down. From
//                 there it moves down
//                   - to a reader of the parameter, if it has no rows and only parameter gradients
//                     depend on it;
//                   - to its readers, if it reads one gradient and its result is no smaller: the
//                     backward of a cast from f32, of an activation.
//   recomputed in every stage that reads it, not sent
//                   - values of batch tensors, scalars and constants only, or of parameters and
//                     constants only, with at most 16 flops per byte: masks, positions, casts and
//                     tables of parameters. Sending moves these bytes over a link, recomputing
//                     about as many in memory, which is ten to a thousand times as fast;
//                   - sources of sums over the step: normalisers of losses;
//                   - views that are no smaller than their base, which is sent instead.
//   parameter of several stages (tied weights)
//                   Each stage that reads it stores it. If it is trained, additions that sum the
//                   gradients of several readers, and linear ops after them, run in every stage
//                   for its own terms. Partial gradients are summed over the stages once a step.
//   buffer that the step changes
//                   Each stage that reads it stores it and receives its new value.
//
// Knows nothing of devices, costs, or of good cuts (medley/stages/layers.h).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

enum class Presence : uint8_t {
  kOnce,       // in the stage of its position
  kWhereRead,  // recomputed in every stage that reads it
  kPartial,    // in every stage with terms of the sum
};

// Positions of ops, before any cut.
struct Positions {
  std::vector<OpId> sequence;      // forward ops, in graph order; cuts are between them
  std::vector<Presence> presence;  // [op]
  std::vector<int32_t> position;   // [op] into `sequence` for kOnce, else kNone
  std::vector<ValueId> root;       // [value] value that is sent: itself, or the base of a view
  // [value] For roots read by later forward ops at positions: the last reader's position; else
  // kNone.
  std::vector<int32_t> last_read;
  std::map<OpId, std::vector<ValueId>> terms;  // [kPartial op]
  // Positions that read each parameter in the forward phase, ascending.
  std::map<ValueId, std::vector<int32_t>> uses;
};

// Requires: verify(graph) has passed; no update phase.
Positions place(const Graph& graph);

// A value that other stages read: up, of the forward phase, or down, of either phase.
struct Transfer {
  ValueId value = kNone;
  std::string name;  // stable name of the op, "~" in it for gradients, then ".1" for its result 1
  int from = 0;
  std::vector<int> to;  // ascending
  bool operator==(const Transfer&) const = default;
};

// Returns the gradient values by name. A parameter without one is frozen.
std::map<std::string, ValueId> gradients_of(const Graph& graph);

// A parameter that several stages store and train. `partial`: stages with a part of its gradient.
struct Tied {
  std::string parameter;
  std::vector<int> holders, partial;  // ascending
  auto operator<=>(const Tied&) const = default;
};

// A buffer that the step changes; each holder replaces it.
struct Changing {
  std::string buffer;
  std::vector<int> holders;  // ascending
  bool operator==(const Changing&) const = default;
};

struct Partition {
  std::vector<int32_t> cuts;           // positions at which stages 1, 2, ... begin; ascending
  std::vector<std::vector<OpId>> ops;  // [stage] ascending
  std::vector<Transfer> transfers;     // by (value, from)
  std::vector<Tied> tied;              // in the order of the inputs
  std::vector<Changing> changing;      // in the order of the outputs
  bool operator==(const Partition&) const = default;
};

// `names`: stable_names() of the graph, or Prepared::names. Verifies its result. Requires: 0 <
// cuts[0] < cuts[1] < ... < sequence.size().
Partition partition(const Graph& graph,
                    const Positions& positions,
                    std::vector<int32_t> cuts,
                    const std::vector<std::string>& names);

// Throws Error(kUs) for an invalid partition. Every op is in a stage, kOnce ops in exactly one;
// unread kWhereRead ops may be in none. Operands are inputs, computed in the stage or transferred,
// except other stages' terms of sums. Every term is added in one stage. Forward ops read values
// from earlier stages; gradients only go down. Every transfer is read and every output computed.
// Stages that read a buffer get its new value.
void verify(const Graph& graph, const Positions& positions, const Partition& partition);

// Values sent over the boundary between stages k and k + 1, skip connections included: each once,
// in the order of the transfers.
struct Boundary {
  std::vector<ValueId> up, down;
};
Boundary boundary(const Partition& partition, int k);

// Returns the bytes of all values as a sum of sizes over symbols, ascending by symbols.
std::vector<Size> total_bytes(const Graph& graph, const std::vector<ValueId>& values);
int64_t evaluate(const std::vector<Size>& sum, const std::vector<int64_t>& symbol_values);

// The ops of one stage as a graph that passes verify() and has the whole graph's symbols. Values
// from other stages are inputs `received`, values for them outputs `sent`, both named as the
// transfer. The gradient of a tied parameter is this stage's part, and absent without one.
struct StageGraph {
  Graph graph;
  std::vector<OpId> ops;        // [op] in the whole graph
  std::vector<ValueId> values;  // [value] in the whole graph
};
StageGraph stage_graph(const Graph& graph, const Partition& partition, int stage);

}  // namespace medley
