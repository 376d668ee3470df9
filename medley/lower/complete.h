#pragma once

// Sharding propagation: a choice for every op and a placement for every value that the plan leaves
// open. Deterministic: topological order, fewest bytes moved, fewest local redistributions, rule
// order. Knows no strategy.

#include <string>
#include <vector>

#include "medley/plan/plan.h"
#include "medley/prepare/prepare.h"
#include "medley/sharding/choice.h"
#include "medley/sharding/factors.h"

namespace medley {

// Returns the parts of a stage by index: the plan's, after "rows" (if its micro-batches have
// lengths) and "even".
std::vector<Part> parts_of(const Plan& plan, const Pipeline& pipeline);

struct Assignment {
  std::vector<std::string> part_names;
  std::vector<Part> parts;
  std::vector<std::vector<Choice>> choices;  // [op][axis]
  std::vector<Placement> placements;         // [value] after its producer; for inputs, as stored
  std::vector<Placement>
      stored;  // parallel to graph.outputs: the placement in which an output is kept
  // Ops whose composite label is to be cut; unless empty, the rest is not filled in.
  std::vector<OpId> to_expand;
};

// Throws Error(kCaller) naming the plan's entry if it names no op, or a choice that the op's rule
// does not permit.
Assignment complete(const Prepared& prepared,
                    const Factors& factors,
                    const Plan& plan,
                    const Pipeline& pipeline,
                    const Stage& stage);

// Returns the bytes that a device sends to redistribute `type` between two placements, for
// concrete symbol values.
double redistribution_bytes(double value_bytes,
                            const Placement& from,
                            const Placement& to,
                            const std::vector<int64_t>& mesh);

}  // namespace medley
