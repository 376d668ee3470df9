#include "medley/synthesis/spmd_problem.h"

#include <algorithm>
#include <cmath>

#include "medley/synthesis/tuning.h"

namespace medley {
SpmdProblem::SpmdProblem(const Prepared& prepared,
                         OpCatalogue& catalogue,
                         const SpmdOptions& options)
    : prepared_(prepared),
      graph_(prepared.graph),
      factors_(catalogue.factors()),
      catalogue_(catalogue),
      mesh_(catalogue.mesh()),
      options_(options) {
  for (const Part& part : mesh_.parts()) part_names_.push_back(part.name);
  input_variable_.assign(graph_.values.size(), -1);
  op_variable_.assign(graph_.ops.size(), -1);
  readers_.resize(graph_.values.size());
  views_.resize(graph_.values.size());
  mark_sources();
  add_inputs();
  add_ops();
  note_readers();
  fold_views();
  connect();
  connect_outputs();
  if (options_.byte_price > 0) charge_memory();
  finish();
}

// Marks ops without inputs, which each reader recomputes; complete() decides for them.
void SpmdProblem::mark_sources() {
  constant_.assign(graph_.ops.size(), true);
  batch_only_.assign(graph_.ops.size(), true);
  stored_in_step_.assign(graph_.values.size(), 0);
  std::set<ValueId> batch;
  for (const Input& input : graph_.inputs)
    if (input.kind == InputKind::kBatch) batch.insert(input.value);
  for (const Output& output : graph_.outputs) outputs_.insert(output.value);
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    for (ValueId value : operands(op)) {
      if (value == kNone) continue;
      const OpId producer = graph_.values[at(value)].producer;
      if (producer == kNone || !constant_[at(producer)]) constant_[i] = false;
      if (producer == kNone ? !batch.contains(value) : !batch_only_[at(producer)])
        batch_only_[i] = false;
    }
    for (ValueId result : op.results)
      if (result != kNone && (op.phase == Phase::kUpdate || op.name == "medley.accumulate.default"))
        stored_in_step_[at(result)] = 1;
  }
}

bool SpmdProblem::is_hub(OpId id) const {
  const std::vector<ValueId> values = operands(graph_.ops[at(id)]);
  return values.size() > kMostNeighbours &&
         std::all_of(values.begin(), values.end(), [&](ValueId value) {
           return value == kNone ||
                  static_cast<double>(num_bytes(type_of(graph_, value), {1})) < kShareBytes;
         });
}

bool SpmdProblem::maps_all_readers(ValueId value,
                                   const std::map<PlacementId, PlacementId>& map) const {
  for (const Reader& reader : readers_[at(value)])
    for (const PlacementId wanted : *reader.wanted)
      if (!map.contains(wanted)) return false;
  return true;
}

// Goes backwards, so readers of a view of a view are known to the first one.
void SpmdProblem::fold_views() {
  for (size_t i = graph_.ops.size(); i-- > 0;)
    if (op_variable_[i] >= 0 && fold_view(static_cast<OpId>(i)))
      folded_.push_back(static_cast<OpId>(i));
  std::reverse(folded_.begin(), folded_.end());
}

bool SpmdProblem::fold_view(OpId id) {
  const Op& op = graph_.ops[at(id)];
  if (work_class(op.name) != WorkClass::kView || op.results.size() != 1) return false;
  const std::vector<ValueId> values = operands(op);
  if (values.size() != 1 || values[0] == kNone || outputs_.contains(op.results[0])) return false;
  const int variable = op_variable_[at(id)];
  const OpChoices& choices = *variables_[at(variable)].op;
  View view{values[0], {}};
  std::set<PlacementId> seen;
  for (size_t c = 0; c < choices.choices.size(); ++c)
    if (!view.to_root.emplace(choices.results[0][c], choices.operands[0][c]).second ||
        !seen.insert(choices.operands[0][c]).second)
      return false;
  if (!maps_all_readers(op.results[0], view.to_root)) return false;
  auto& readers = readers_[at(values[0])];
  std::erase_if(readers, [&](const Reader& reader) {
    return reader.variable == variable && reader.phase == op.phase;
  });
  for (const Reader& reader : readers_[at(op.results[0])]) {
    std::vector<PlacementId> wanted;
    for (const PlacementId placement : *reader.wanted) wanted.push_back(view.to_root.at(placement));
    mapped_.push_back(std::move(wanted));
    const Reader moved{reader.variable, &mapped_.back(), reader.phase};
    const bool again = std::any_of(readers.begin(), readers.end(), [&](const Reader& other) {
      return other.variable == moved.variable && *other.wanted == *moved.wanted &&
             other.phase == moved.phase;
    });
    if (!again) readers.push_back(moved);
  }
  readers_[at(op.results[0])].clear();
  views_[at(op.results[0])] = std::move(view);
  return true;
}

int SpmdProblem::add_variable(Variable variable, std::vector<int64_t> unary) {
  variables_.push_back(std::move(variable));
  unary_.push_back(std::move(unary));
  return static_cast<int>(variables_.size()) - 1;
}

// Returns whole or cut on each axis by different factors; both may cut a value of one factor.
std::vector<PlacementId> SpmdProblem::parameter_placements(ValueId value) const {
  std::vector<Placement> placements{{}};
  const std::vector<ExtentId> flat = flat_factors(factors_, value);
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    std::vector<AxisPlacement> here{replicated()};
    for (size_t p = 0; p < flat.size() && options_.shard_parameters; ++p)
      for (int part = 0; part < static_cast<int>(part_names_.size()); ++part)
        if (factors_.extent_sizes[at(flat[p])].is_constant() && mesh_.may_cut(axis, part, false))
          here.push_back(sharded(static_cast<int>(p), part));
    std::vector<Placement> longer;
    for (const Placement& before : placements)
      for (const AxisPlacement& placement : here) {
        if (axis > 0 && flat.size() > 1 && placement.holding == Holding::kSharded &&
            before[0].position == placement.position)
          continue;
        longer.push_back(before);
        longer.back().push_back(placement);
      }
    placements = std::move(longer);
  }
  std::vector<PlacementId> ids;
  for (const Placement& placement : placements) ids.push_back(mesh_.id(placement));
  return ids;
}

// Returns whole, and cut by each axis's part of the batch, if the batch is divided.
std::vector<PlacementId> SpmdProblem::batch_placements(ValueId value) const {
  Placement placement(at(mesh_.num_axes()));
  std::vector<PlacementId> ids{mesh_.id(placement)};
  const std::vector<ExtentId> flat = flat_factors(factors_, value);
  const auto batch = std::find_if(flat.begin(), flat.end(), [&](ExtentId extent) {
    return factors_.extent_sizes[at(extent)] == Size::of(0);
  });
  if (part_names_[0] != kRows || batch == flat.end()) return ids;
  const auto position = static_cast<int>(batch - flat.begin());
  for (size_t axis = 0; axis < placement.size(); ++axis)
    for (size_t before = ids.size(), i = 0; i < before; ++i)
      for (int part = 0; part < static_cast<int>(part_names_.size()); ++part) {
        if (!mesh_.may_cut(static_cast<int>(axis), part, true)) continue;
        placement = mesh_.placement(ids[i]);
        placement[axis] = sharded(position, part);
        ids.push_back(mesh_.id(placement));
      }
  return ids;
}

// Returns the placement of complete(): by rows on the first axis, if the batch is divided.
PlacementId SpmdProblem::received_placement(ValueId value) const {
  const std::vector<PlacementId> placements = batch_placements(value);
  return placements.size() > 1 ? placements[1] : placements[0];
}

void SpmdProblem::add_inputs() {
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    const Input& input = graph_.inputs[i];
    Variable variable{Kind::kParameter, static_cast<int32_t>(i), nullptr, {}};
    if (input.kind == InputKind::kParameter) {
      variable.placements = parameter_placements(input.value);
    } else if (input.kind == InputKind::kBatch) {
      variable.kind = Kind::kBatch;
      variable.placements = batch_placements(input.value);
    } else if (input.kind == InputKind::kReceived) {
      variable.kind = Kind::kReceived;
      variable.placements = {received_placement(input.value)};
    } else {
      continue;  // replicated; the update places optimizer state
    }
    std::vector<int64_t> unary(variable.placements.size(), 0);
    input_variable_[at(input.value)] = add_variable(std::move(variable), std::move(unary));
  }
}

void SpmdProblem::add_ops() {
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (constant_[i]) continue;
    const auto id = static_cast<OpId>(i);
    if (is_hub(id)) {
      const OpChoices& choices = catalogue_.of(id);
      const MeshChoice& last = choices.choices.back();
      fixed_[id] = last[0].choice.kind == ChoiceKind::kLinear ? last : choices.choices[0];
    } else {
      op_variable_[i] = add_op_variable(id);
    }
  }
}

// Returns whether an update uses a placement of its parameter, or is whole.
bool SpmdProblem::may_update(const OpChoices& choices, size_t choice) const {
  const Placement& parameter = mesh_.placement(choices.operands[0][choice]);
  for (size_t axis = 0; axis < parameter.size(); ++axis) {
    const auto& [on, composite] = choices.choices[choice][axis];
    const bool cut = on.kind == ChoiceKind::kCut && !composite &&
                     parameter[axis].holding == Holding::kSharded && options_.shard_parameters;
    if (on.kind != ChoiceKind::kReplicate && !cut) return false;
  }
  return true;
}

// Plans do not distinguish ops of one name: the prologue repeats forward ops, and the backward
// phase repeats views of parameters. They share a variable.
int SpmdProblem::add_op_variable(OpId id) {
  const Op& op = graph_.ops[at(id)];
  const std::string& name = prepared_.names[at(id)];
  const OpChoices& choices = catalogue_.of(id);
  const double count =
      options_.ops_count *
      (op.phase == Phase::kUpdate ? 1 : static_cast<double>(options_.microbatches));
  std::vector<int64_t> unary;
  for (size_t c = 0; c < choices.choices.size(); ++c) {
    unary.push_back(static_cast<int64_t>(static_cast<double>(choices.costs[c]) * count));
    if (prepared_.roles[at(id)].kind == OpRole::Kind::kUpdate && !may_update(choices, c))
      unary.back() = kForbidden;
  }
  const auto known = by_name_.find(name);
  if (known != by_name_.end() && variables_[at(known->second)].op == &choices) {
    for (size_t c = 0; c < unary.size(); ++c) add_unary(known->second, c, unary[c]);
    return known->second;
  }
  const int variable = add_variable({Kind::kOp, id, &choices, {}}, std::move(unary));
  by_name_.try_emplace(name, variable);
  return variable;
}

void SpmdProblem::add_unary(int variable, size_t choice, int64_t cost) {
  int64_t& total = unary_[at(variable)][choice];
  total = std::min(kForbidden, total + cost);
}

void SpmdProblem::note_readers() {
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (op_variable_[i] < 0) continue;
    const std::vector<ValueId> values = operands(graph_.ops[i]);
    const OpChoices& choices = *variables_[at(op_variable_[i])].op;
    for (size_t k = 0; k < values.size(); ++k) {
      if (values[k] == kNone) continue;
      auto& readers = readers_[at(values[k])];
      const Reader reader{op_variable_[i], &choices.operands[k], graph_.ops[i].phase};
      const bool again = std::any_of(readers.begin(), readers.end(), [&](const Reader& other) {
        return other.variable == reader.variable && *other.wanted == *reader.wanted &&
               other.phase == reader.phase;
      });
      if (!again) readers.push_back(reader);
    }
  }
}

void SpmdProblem::connect() {
  for (const Input& input : graph_.inputs) {
    const int variable = input_variable_[at(input.value)];
    if (variable >= 0) {
      const std::vector<PlacementId> placements = variables_[at(variable)].placements;
      connect_value(input.value, variable, placements, input.kind != InputKind::kReceived);
    } else if (input.kind == InputKind::kBuffer) {
      for (const Reader& reader : readers_[at(input.value)])
        for (size_t c = 0; c < reader.wanted->size(); ++c)
          add_unary(
              reader.variable,
              c,
              redistribution(
                  input.value, whole(), (*reader.wanted)[c], times(input.value, reader.phase)));
    }
  }
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (op_variable_[i] < 0) continue;
    const Op& op = graph_.ops[i];
    const OpChoices& choices = *variables_[at(op_variable_[i])].op;
    for (size_t r = 0; r < op.results.size(); ++r)
      if (op.results[r] != kNone)
        connect_value(op.results[r], op_variable_[i], choices.results[r], false);
  }
}

// A parameter is redistributed in each phase (it is not kept gathered); other values once for all
// readers.
void SpmdProblem::connect_value(ValueId value,
                                int producer,
                                const std::vector<PlacementId>& from,
                                bool input) {
  const std::vector<Reader>& readers = readers_[at(value)];
  if (!input) return connect_group(value, producer, from, readers);
  for (int number = 0; number <= static_cast<int>(Phase::kUpdate); ++number) {
    const auto phase = static_cast<Phase>(number);
    std::vector<Reader> group;
    for (const Reader& reader : readers)
      if (reader.phase == phase) group.push_back(reader);
    connect_group(value, producer, from, group);
  }
}

void SpmdProblem::connect_group(ValueId value,
                                int producer,
                                const std::vector<PlacementId>& from,
                                const std::vector<Reader>& readers) {
  if (readers.empty()) return;
  const OpId made_by = graph_.values[at(value)].producer;
  const bool from_batch =
      made_by == kNone ? variables_[at(producer)].kind == Kind::kBatch : batch_only_[at(made_by)];
  note_meeting(value, producer, from);
  if (from_batch && readers.size() > kMostNeighbours) return;
  const double count = times(value, readers[0].phase);
  if (readers.size() == 1 || catalogue_.shape(value).bytes() < kShareBytes) {
    for (const Reader& reader : readers)
      add_edge(producer, reader.variable, value, from, *reader.wanted, times(value, reader.phase));
    return;
  }
  std::vector<PlacementId> all = from;
  for (const Reader& reader : readers)
    all.insert(all.end(), reader.wanted->begin(), reader.wanted->end());
  // Sorted by placement: numbers depend on the mesh's history.
  std::sort(all.begin(), all.end(), [&](PlacementId a, PlacementId b) {
    return mesh_.placement(a) < mesh_.placement(b);
  });
  all.erase(std::unique(all.begin(), all.end()), all.end());
  Variable copy{Kind::kCopy, value, nullptr, all};
  const int variable = add_variable(std::move(copy), std::vector<int64_t>(all.size(), 0));
  add_edge(producer, variable, value, from, all, count);
  const bool in_one_group = made_by != kNone || variables_[at(producer)].kind == Kind::kReceived;
  if (in_one_group) note_meeting(value, variable, all);
  for (const Reader& reader : readers)
    add_edge(variable, reader.variable, value, all, *reader.wanted, times(value, reader.phase));
}

// Returns how often per step a value is redistributed for readers of this phase.
double SpmdProblem::times(ValueId value, Phase reader) const {
  const bool once = reader == Phase::kUpdate || stored_in_step_[at(value)];
  const double count = once ? 1 : static_cast<double>(options_.microbatches);
  const OpId producer = graph_.values[at(value)].producer;
  const bool sums_gradients = reader == Phase::kUpdate && stored_in_step_[at(value)] &&
                              graph_.ops[at(producer)].phase == Phase::kBackward;
  const bool gathers_parameter =
      input_variable_[at(value)] >= 0 && reader != Phase::kUpdate &&
      variables_[at(input_variable_[at(value)])].kind == Kind::kParameter;
  if (sums_gradients || gathers_parameter) return count * options_.overlapped_count;
  return once ? count : count * options_.waits_count;
}

Ticks SpmdProblem::redistribution(ValueId value, PlacementId from, PlacementId to, double times) {
  if (from == to) return 0;
  const double cost =
      mesh_.redistribution(catalogue_.shape_id(value), from, to, stored_in_step_[at(value)] != 0);
  return std::min(kForbidden, static_cast<int64_t>(std::llround(cost * times)));
}

int SpmdProblem::intern_placements(const std::vector<PlacementId>& placements) {
  return placement_lists_.try_emplace(placements, static_cast<int>(placement_lists_.size()))
      .first->second;
}

void SpmdProblem::add_edge(int a,
                           int b,
                           ValueId value,
                           const std::vector<PlacementId>& from,
                           const std::vector<PlacementId>& to,
                           double times) {
  if (a == b) {
    for (size_t c = 0; c < from.size(); ++c)
      add_unary(a, c, redistribution(value, from[c], to[c], times));
    return;
  }
  const bool turned = a > b;
  const int64_t kept = stored_in_step_[at(value)];
  const std::vector<int64_t> key{catalogue_.shape_id(value),
                                 intern_placements(from),
                                 intern_placements(to),
                                 static_cast<int64_t>(std::llround(times * 1e6)),
                                 kept,
                                 turned ? 1 : 0};
  const auto [found, added] = tables_.try_emplace(key, static_cast<int>(pbqp_.tables.size()));
  if (added) {
    PbqpTable table;
    table.rows = static_cast<int32_t>(turned ? to.size() : from.size());
    table.columns = static_cast<int32_t>(turned ? from.size() : to.size());
    for (int32_t row = 0; row < table.rows; ++row)
      for (int32_t column = 0; column < table.columns; ++column) {
        const PlacementId have = from[at(turned ? column : row)];
        const PlacementId want = to[at(turned ? row : column)];
        table.costs.push_back(redistribution(value, have, want, times));
      }
    pbqp_.tables.push_back(std::move(table));
  }
  pbqp_.edges.push_back({std::min(a, b), std::max(a, b), found->second});
}

void SpmdProblem::connect_outputs() {
  std::map<std::string, int> parameters;
  for (const Input& input : graph_.inputs)
    if (input.kind == InputKind::kParameter)
      parameters[input.name] = input_variable_[at(input.value)];
  const double every = static_cast<double>(options_.microbatches);
  for (const Output& output : graph_.outputs) {
    const Value& value = graph_.values[at(output.value)];
    if (value.producer == kNone || op_variable_[at(value.producer)] < 0) continue;
    const int producer = op_variable_[at(value.producer)];
    const std::vector<PlacementId>& from = variables_[at(producer)].op->results[at(value.result)];
    if (output.kind == OutputKind::kParameter) {
      const int parameter = parameters.at(output.name);
      const std::vector<PlacementId> stored = variables_[at(parameter)].placements;
      add_edge(producer, parameter, output.value, from, stored, 1);
    } else if (output.kind == OutputKind::kSent) {
      send(producer, output.value, from);
    } else if (output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric ||
               output.kind == OutputKind::kBuffer) {
      for (size_t c = 0; c < from.size(); ++c)
        add_unary(
            producer,
            c,
            redistribution(
                output.value, from[c], whole(), output.kind == OutputKind::kBuffer ? every : 1));
    }
  }
}

// Cut or whole values are sent unchanged (lower/crossing.h); a partial sum is reduced first.
void SpmdProblem::send(int producer, ValueId value, const std::vector<PlacementId>& from) {
  const PlacementId to = received_placement(value);
  const auto is_sum = [](const AxisPlacement& on) { return on.holding == Holding::kPartialSum; };
  for (size_t c = 0; c < from.size(); ++c)
    if (options_.sends_as_received || std::ranges::any_of(mesh_.placement(from[c]), is_sum))
      add_unary(producer, c, redistribution(value, from[c], to, times(value, Phase::kForward)));
}

// Counts parameters, optimizer state, accumulated gradients, and values saved for backward.
void SpmdProblem::charge_memory() {
  const auto price = [&](int variable, ValueId value, const std::vector<PlacementId>& placements) {
    for (size_t c = 0; c < placements.size(); ++c)
      add_unary(
          variable,
          c,
          static_cast<int64_t>(options_.byte_price *
                               mesh_.scarce_bytes(catalogue_.shape_id(value), placements[c])));
  };
  std::set<ValueId> optimizer_states;
  for (const Input& input : graph_.inputs) {
    if (input.kind == InputKind::kState) optimizer_states.insert(input.value);
    const int variable = input_variable_[at(input.value)];
    if (input.kind == InputKind::kParameter) {
      const std::vector<PlacementId> stored = variables_[at(variable)].placements;
      price(variable, input.value, stored);
    }
  }
  for (size_t i = 0; i < graph_.ops.size(); ++i) {
    if (op_variable_[i] < 0) continue;
    const Op& op = graph_.ops[i];
    const OpChoices& choices = *variables_[at(op_variable_[i])].op;
    const std::vector<ValueId> values = operands(op);
    for (size_t k = 0; k < values.size(); ++k)
      if (values[k] != kNone && optimizer_states.contains(values[k]))
        price(op_variable_[i], values[k], choices.operands[k]);
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId result = op.results[r];
      if (result == kNone) continue;
      const auto& readers = readers_[at(result)];
      const bool saved = op.phase == Phase::kForward &&
                         std::any_of(readers.begin(), readers.end(), [](const Reader& reader) {
                           return reader.phase == Phase::kBackward;
                         });
      const bool gradient = op.phase == Phase::kBackward && stored_in_step_[at(result)];
      if ((saved && storage_operand(op, r) == kNone) || gradient)
        price(op_variable_[i], result, choices.results[r]);
    }
  }
}

void SpmdProblem::note_meeting(ValueId value,
                               int variable,
                               const std::vector<PlacementId>& placements) {
  meetings_[value] = {variable, placements};
}

// Numbers the remaining variables.
void SpmdProblem::finish() {
  std::vector<bool> alive(variables_.size(), false);
  const std::set<OpId> folded(folded_.begin(), folded_.end());
  for (size_t v = 0; v < variables_.size(); ++v) alive[v] = variables_[v].kind != Kind::kOp;
  for (size_t i = 0; i < graph_.ops.size(); ++i)
    if (op_variable_[i] >= 0 && !folded.contains(static_cast<OpId>(i)))
      alive[at(op_variable_[i])] = true;
  std::map<std::vector<int64_t>, int32_t> distinct;
  pbqp_id_.assign(variables_.size(), -1);
  for (size_t v = 0; v < variables_.size(); ++v) {
    if (!alive[v]) continue;
    const auto [found, added] =
        distinct.try_emplace(unary_[v], static_cast<int32_t>(pbqp_.unaries.size()));
    if (added) pbqp_.unaries.push_back(unary_[v]);
    pbqp_id_[v] = static_cast<int>(pbqp_.unary_of.size());
    pbqp_.unary_of.push_back(found->second);
  }
  for (PbqpEdge& edge : pbqp_.edges) {
    edge.u = pbqp_id_[at(edge.u)];
    edge.v = pbqp_id_[at(edge.v)];
  }
  verify(pbqp_);
}

}  // namespace medley
