#pragma once

// The ways to compute one op on the devices of one axis, derived from its rule, with the placements
// that each requires of operands and gives to results.

#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/sharding/factors.h"
#include "medley/sharding/placement.h"

namespace medley {

enum class ChoiceKind : uint8_t {
  kReplicate,  // every device computes the whole op
  kCut,        // a factor of a label is divided by a part
  kLinear,     // partial sums of a linear group pass through
};

struct Choice {
  ChoiceKind kind = ChoiceKind::kReplicate;
  Cut cut;         // kCut
  int part = -1;   // kCut
  int group = -1;  // kLinear
  auto operator<=>(const Choice& other) const = default;
};

// Returns whether the rule permits the choice: a label that is not locked, a select label at its
// leading factor, an existing group.
bool is_legal(const Factors& factors, OpId op, const Choice& choice);

// Returns the extent of the factor that a cut divides.
inline ExtentId extent_of(const Factors& factors, OpId op, const Cut& cut) {
  const auto& labels = factors.labels[at(op)];
  return labels[at(cut.label)][at(cut.factor)];
}

// Return the required placement of each operand / placement of each result, in the order of
// operands(op) / op.results. Requires: is_legal.
std::vector<AxisPlacement> operand_placements(const Graph& graph,
                                              const Factors& factors,
                                              OpId op,
                                              const Choice& choice);
std::vector<AxisPlacement> result_placements(const Graph& graph,
                                             const Factors& factors,
                                             OpId op,
                                             const Choice& choice);

// Return the same on a mesh: the placement on every axis per operand / result.
std::vector<Placement> operand_placements(const Graph& graph,
                                          const Factors& factors,
                                          OpId op,
                                          const std::vector<Choice>& choice);
std::vector<Placement> result_placements(const Graph& graph,
                                         const Factors& factors,
                                         OpId op,
                                         const std::vector<Choice>& choice);

// Return the cut that gives an operand (or a result) this placement, if its label may be cut there.
std::optional<Choice> cut_for_operand(const Graph& graph,
                                      const Factors& factors,
                                      OpId op,
                                      int operand,
                                      const AxisPlacement& placement);
std::optional<Choice> cut_for_result(const Graph& graph,
                                     const Factors& factors,
                                     OpId op,
                                     int result,
                                     const AxisPlacement& placement);

// Returns "replicate", "linear {0+1}", "n.1 heads": the form that plans use.
std::string to_string(const Factors& factors,
                      OpId op,
                      const Choice& choice,
                      const std::vector<std::string>& parts);

}  // namespace medley
