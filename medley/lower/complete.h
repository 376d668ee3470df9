#pragma once

// Fills in what a plan leaves open: a choice for every op and with it a state for every value.
// Deterministic: topological order, fewest bytes moved, fewest local conversions, rule order on
// ties. Knows no strategy.

#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/prepare/prepare.h"
#include "medley/sharding/choice.h"
#include "medley/sharding/factors.h"

namespace medley {

// The parts of a stage by index: the plan's, after "rows" (if its micro-batches have lengths) and
// "even".
std::vector<Part> parts_of(const Plan& plan, const Pipeline& pipeline);

struct Assignment {
  std::vector<std::string> part_names;
  std::vector<Part> parts;
  std::vector<std::vector<Choice>> choices;  // [op][axis]
  std::vector<State> states;    // [value] as the producer leaves it; of inputs, as they are stored
  std::vector<State> stored;    // parallel to graph.outputs: state in which an output is kept
  std::vector<OpId> to_expand;  // ops with a composite label that is to be cut; if not empty, the
                                // rest is not filled in
};

// Throws Error(kCaller) naming the entry of the plan that names no op or a choice that the op's
// rule does not permit.
Assignment complete(const Prepared& prepared,
                    const Factors& factors,
                    const Plan& plan,
                    const Pipeline& pipeline,
                    const Stage& stage);

// Returns the bytes that a device sends to bring `type` from one state to another on a mesh, for
// concrete symbol values.
double conversion_bytes(double value_bytes,
                        const State& from,
                        const State& to,
                        const std::vector<int64_t>& mesh);

}  // namespace medley
