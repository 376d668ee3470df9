#pragma once

// The ways to compute one op on the devices of one axis, derived from its rule, and what each asks
// of its operands and makes of its results.

#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/sharding/factors.h"
#include "medley/sharding/state.h"

namespace medley {

enum class ChoiceKind : uint8_t {
  kReplicate,  // every device computes all of it
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

// Returns whether the rule permits it (a label that is not locked, a select label at its leading
// factor, an existing group).
bool is_legal(const Factors& factors, OpId op, const Choice& choice);

// Returns the factor that a cut divides.
inline ExtentId extent_of(const Factors& factors, OpId op, const Cut& cut) {
  const auto& labels = factors.labels[at(op)];
  return labels[at(cut.label)][at(cut.factor)];
}

// Returns the state that each operand must have / each result gets, in the order of operands(op) /
// op.results. Requires: is_legal.
std::vector<AxisState> operand_states(const Graph& graph,
                                      const Factors& factors,
                                      OpId op,
                                      const Choice& choice);
std::vector<AxisState> result_states(const Graph& graph,
                                     const Factors& factors,
                                     OpId op,
                                     const Choice& choice);

// The same on a mesh: of each operand / result the state on every axis.
std::vector<State> operand_states(const Graph& graph,
                                  const Factors& factors,
                                  OpId op,
                                  const std::vector<Choice>& choice);
std::vector<State> result_states(const Graph& graph,
                                 const Factors& factors,
                                 OpId op,
                                 const std::vector<Choice>& choice);

// Returns the cut that makes an operand (or a result) have this state, if its label may be cut
// there.
std::optional<Choice> cut_for_operand(
    const Graph& graph, const Factors& factors, OpId op, int operand, const AxisState& state);
std::optional<Choice> cut_for_result(
    const Graph& graph, const Factors& factors, OpId op, int result, const AxisState& state);

// Returns "replicate", "linear {0+1}", "n.1 heads": the form that plans use.
std::string to_string(const Factors& factors,
                      OpId op,
                      const Choice& choice,
                      const std::vector<std::string>& parts);

}  // namespace medley
