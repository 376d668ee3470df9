#pragma once

// Which stage of a pipeline computes which op. The forward ops form a sequence; a cut is a position
// in it, and the place of every other op follows:
//
//   forward     a   b   c | d   e   f     | is a cut: positions 0 .. 2 are stage 0
//   backward    a'  b'  c' | d'  e'  f'
//
//   backward op   at the highest position at which all that it reads is available: a forward value
//                 from its producer to its last forward reader, a gradient at its producer and
//                 below. It goes down from there
//                   - to a reader of the parameter, if it has no rows and only parameter
//                     gradients come of it;
//                   - to its readers, if it reads one gradient and makes no smaller one: the
//                     backward of a cast from f32, of an activation.
//   computed again in every stage that reads it, rather than sent
//                   - what depends on batch tensors, scalars and constants only, or on parameters
//                     and constants only, and has at most 16 flops per byte that it makes: masks,
//                     positions, casts and tables of parameters. Sending costs these
//                     bytes on a link, computing about as many in memory, for which a device has
//                     ten to a thousand times the speed;
//                   - what sums over the step are made of: weights of losses;
//                   - views that are not smaller than what they are views of, which is sent.
//   parameter of several stages (tied weights)
//                   each stage that reads it holds it. If it is trained, the additions that make
//                   one gradient of the gradients of several readers, and linear ops behind them,
//                   are computed in every stage for its own terms: partial gradients, to be summed
//                   over the stages once a step.
//   buffer that the step changes
//                   each stage that reads it holds it, and is sent its new value.
//
// Knows nothing of devices, costs, or of where it is good to cut (medley/stages/layers.h).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "medley/graph/graph.h"

namespace medley {

enum class Presence : uint8_t {
  kOnce,       // in the stage of its position
  kWhereRead,  // again in every stage that reads it
  kPartial,    // in every stage that has terms of the sum
};

// Where ops are, before any cut.
struct Positions {
  std::vector<OpId> sequence;      // forward ops between which cuts lie, in the graph's order
  std::vector<Presence> presence;  // [op]
  std::vector<int32_t> position;   // [op] into `sequence` for kOnce, else kNone
  std::vector<ValueId> root;  // [value] what is sent in its place: itself, or what it is a view of
  // [value] roots that forward ops at positions read after they were made: the last reader's
  // position; kNone for all others.
  std::vector<int32_t> last_read;
  std::map<OpId, std::vector<ValueId>> terms;  // of each kPartial op
  // The positions at which each parameter is read in the forward phase, ascending.
  std::map<ValueId, std::vector<int32_t>> uses;
};

// Requires: verify(graph) has passed; no update phase.
Positions place(const Graph& graph);

// A value that a stage makes and other stages read: up, of the forward phase, or down, of either.
struct Transfer {
  ValueId value = kNone;
  std::string name;  // stable name of the op, "~" in it for gradients, then ".1" for its result 1
  int from = 0;
  std::vector<int> to;  // ascending
  bool operator==(const Transfer&) const = default;
};

// Returns, by name, the values that are gradients. A parameter without one is frozen.
std::map<std::string, ValueId> gradients_of(const Graph& graph);

// A parameter that several stages hold and train. `partial`: those that have a part of its
// gradient.
struct Tied {
  std::string parameter;
  std::vector<int> holders, partial;  // ascending
  auto operator<=>(const Tied&) const = default;
};

// A buffer that the step changes, and the stages that hold it: each replaces it.
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

// `names`: stable_names() of the graph, or Prepared::names. Verifies its result.
// Requires: 0 < cuts[0] < cuts[1] < ... < sequence.size().
Partition partition(const Graph& graph,
                    const Positions& positions,
                    std::vector<int32_t> cuts,
                    const std::vector<std::string>& names);

// Throws Error(kUs) unless every op is in a stage, those of Presence::kOnce in one, those of
// Presence::kWhereRead perhaps in none, if nobody reads them; every operand
// of every op is an input, made in its stage or transferred to it, but for the terms of sums that
// are other stages'; every term is added in one stage; forward ops read what came up, gradients go
// down only; every transfer is read; every output is made; a stage that reads a buffer has its new
// value.
void verify(const Graph& graph, const Positions& positions, const Partition& partition);

// What is sent over the boundary between stages k and k + 1, skip connections to later stages
// included: each value once, in the order of the transfers.
struct Boundary {
  std::vector<ValueId> up, down;
};
Boundary boundary(const Partition& partition, int k);

// Returns the bytes of all values as a sum of sizes over the graph's symbols, ascending by symbols.
std::vector<Size> total_bytes(const Graph& graph, const std::vector<ValueId>& values);
int64_t evaluate(const std::vector<Size>& sum, const std::vector<int64_t>& symbol_values);

// The ops of one stage as a graph of their own: verify() passes, the whole graph's symbols are its
// symbols. What comes from other stages is an input `received`, what goes to them an output `sent`,
// both under the name of the transfer. The gradient of a tied parameter is this stage's part, and
// is missing where it has none.
struct StageGraph {
  Graph graph;
  std::vector<OpId> ops;        // [op] in the whole graph
  std::vector<ValueId> values;  // [value] in the whole graph
};
StageGraph stage_graph(const Graph& graph, const Partition& partition, int stage);

}  // namespace medley
