// Converts a solution of the problem to a plan.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/synthesis/spmd_problem.h"

namespace medley {

std::optional<PlacementId> SpmdProblem::placement_of(ValueId value,
                                                     const std::vector<int32_t>& choices) const {
  if (const std::optional<View>& view = views_[at(value)]) {
    const std::optional<PlacementId> root = placement_of(view->root, choices);
    for (const auto& [placement, at_root] : view->to_root)
      if (root && at_root == *root) return placement;
    return std::nullopt;
  }
  const auto meeting = meetings_.find(value);
  if (meeting == meetings_.end()) return std::nullopt;
  const int id = pbqp_id_[at(meeting->second.variable)];
  return meeting->second.placements[at(choices[at(id)])];
}

// A view takes the redistributed placement of its root; otherwise complete() decides.
void SpmdProblem::add_folded(const std::vector<int32_t>& choices, Stage& stage) const {
  for (const OpId id : folded_) {
    const int variable = op_variable_[at(id)];
    if (pbqp_id_[at(variable)] >= 0) continue;
    const OpChoices& op = *variables_[at(variable)].op;
    const std::optional<PlacementId> placement =
        placement_of(operands(graph_.ops[at(id)])[0], choices);
    for (size_t c = 0; placement && c < op.choices.size(); ++c)
      if (op.operands[0][c] == *placement)
        stage.ops[prepared_.names[at(id)]] = choice_text(id, op.choices[c]);
  }
}

// Values without inputs have no variable, since readers can compute any placement. complete()
// divides them by rows without looking ahead; the plan has entries for other placements.
void SpmdProblem::add_constants(const std::vector<int32_t>& choices, Stage& stage) const {
  std::map<ValueId, std::set<PlacementId>> wanted;  // by constants
  for (size_t i = graph_.ops.size(); i-- > 0;) {
    if (!constant_[i]) continue;
    const auto id = static_cast<OpId>(i);
    const Op& op = graph_.ops[i];
    const OpChoices& ways = catalogue_.of(id);
    for (size_t r = 0; r < op.results.size(); ++r) {
      if (op.results[r] == kNone) continue;
      std::set<PlacementId> placements = wanted[op.results[r]];
      for (const Reader& reader : readers_[at(op.results[r])])
        if (const int variable = pbqp_id_[at(reader.variable)]; variable >= 0)
          placements.insert((*reader.wanted)[at(choices[at(variable)])]);
      if (placements.empty()) continue;
      const PlacementId placement =
          placements.size() == 1 ? *placements.begin() : ways.results[r][0];
      const auto found = std::ranges::find(ways.results[r], placement);
      const auto way = found == ways.results[r].end() ? 0 : found - ways.results[r].begin();
      const std::vector<ValueId> values = operands(op);
      for (size_t k = 0; k < values.size(); ++k)
        if (values[k] != kNone) wanted[values[k]].insert(ways.operands[k][at(way)]);
      const PlacementId rows = received_placement(op.results[r]);
      if (rows != whole() && rows != placement)
        stage.ops[prepared_.names[i]] = choice_text(id, ways.choices[at(way)]);
      break;
    }
  }
}

std::string SpmdProblem::placement_text(ValueId value, PlacementId placement) const {
  const auto& dims = factors_.values[at(value)];
  std::vector<std::string> axes;
  for (const AxisPlacement& on : mesh_.placement(placement)) {
    if (on.holding != Holding::kSharded) {
      axes.emplace_back(on.holding == Holding::kPartialSum ? "P" : "R");
      continue;
    }
    int position = on.position;
    size_t dim = 0;
    while (position >= static_cast<int>(dims[dim].size()))
      position -= static_cast<int>(dims[dim++].size());
    const std::string& part = part_names_[at(on.part)];
    axes.push_back(dims[dim].size() == 1 ? fmt::format("S({}, {})", dim, part)
                                         : fmt::format("S({}.{}, {})", dim, position, part));
  }
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::string SpmdProblem::choice_text(OpId op, const MeshChoice& choice) const {
  std::vector<std::string> axes;
  for (const AxisChoice& on : choice)
    axes.push_back((on.composite ? "composite " : "") +
                   to_string(factors_, op, on.choice, part_names_));
  return fmt::format("{}", fmt::join(axes, " x "));
}

std::string SpmdProblem::choice_text(const Variable& variable, size_t choice) const {
  if (variable.kind == Kind::kOp) return choice_text(variable.index, variable.op->choices[choice]);
  const ValueId value =
      variable.kind == Kind::kCopy ? variable.index : graph_.inputs[at(variable.index)].value;
  return placement_text(value, variable.placements[choice]);
}

Stage SpmdProblem::stage(const std::vector<int32_t>& choices, Mesh mesh) const {
  Stage stage;
  stage.mesh = std::move(mesh);
  // complete() decides the gradient's norm: a trainer may omit it, and a plan serves both.
  for (const auto& [id, choice] : fixed_)
    if (!prepared_.roles[at(id)].is_norm())
      stage.ops[prepared_.names[at(id)]] = choice_text(id, choice);
  add_folded(choices, stage);
  // On one axis complete() divides them.
  if (mesh_.num_axes() > 1) add_constants(choices, stage);
  for (size_t v = 0; v < variables_.size(); ++v) {
    const Variable& variable = variables_[v];
    if (variable.kind == Kind::kCopy || variable.kind == Kind::kReceived || pbqp_id_[v] < 0)
      continue;
    const auto choice = at(choices[at(pbqp_id_[v])]);
    if (variable.kind != Kind::kOp) {
      const Input& input = graph_.inputs[at(variable.index)];
      (variable.kind == Kind::kBatch ? stage.batch : stage.placements)[input.name] =
          choice_text(variable, choice);
      continue;
    }
    const std::string& name = prepared_.names[at(variable.index)];
    const OpRole& role = prepared_.roles[at(variable.index)];
    if (role.is_norm()) continue;
    if (role.kind == OpRole::Kind::kUpdate) {
      const Input& parameter = graph_.inputs[at(role.of)];
      stage.updates[parameter.name] =
          placement_text(parameter.value, variable.op->operands[0][choice]);
    } else if (by_name_.at(name) == static_cast<int>(v)) {
      stage.ops[name] = choice_text(variable, choice);
    }
  }
  return stage;
}

int SpmdProblem::variable_of(const std::string& name) const {
  int variable = -1;
  if (const auto op = by_name_.find(name); op != by_name_.end()) variable = op->second;
  for (const Input& input : graph_.inputs)
    if (input.kind == InputKind::kParameter && input.name == name)
      variable = input_variable_[at(input.value)];
  return variable < 0 ? -1 : pbqp_id_[at(variable)];
}

std::string SpmdProblem::choice_text(int variable, int32_t choice) const {
  const auto found = std::find(pbqp_id_.begin(), pbqp_id_.end(), variable);
  MEDLEY_CHECK(found != pbqp_id_.end());
  return choice_text(variables_[at(found - pbqp_id_.begin())], at(choice));
}

}  // namespace medley
