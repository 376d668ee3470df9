#include "medley/lower/local_values.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/ops/rule.h"
#include "medley/sharding/redistribution.h"

namespace medley {

ValueId LocalValues::add_input(const Input& input, const Placement& placement) {
  const ValueId local =
      graph_.add_input(input.kind, input.name, graph_.local_type(input.value, placement));
  held_[{input.value, placement}].push_back({local, Phase::kPrologue, true});
  return local;
}

void LocalValues::define(ValueId value, const Placement& placement, ValueId local) {
  held_[{value, placement}].push_back({local, graph_.phase(), false});
}

void LocalValues::redefine(ValueId value, const Placement& placement, ValueId local) {
  for (auto& [key, all] : held_)
    if (key.first == value) all.clear();
  define(value, placement, local);
}

void LocalValues::arrive(ValueId value, const Placement& placement, ValueId local) {
  std::erase_if(started_, [&](const auto& each) { return each.first.first == value; });
  arrived_[value] = placement;
  redefine(value, placement, local);
}

const Placement& LocalValues::own_placement(ValueId value) const {
  const auto arrived = arrived_.find(value);
  return arrived != arrived_.end() ? arrived->second
                                   : graph_.completed.assignment.placements[at(value)];
}

void LocalValues::save_for_backward(ValueId input) {
  saved_.insert(input);
  Held& held = held_.at({input, own_placement(input)})[0];
  const TensorType type = type_of(graph_.stage.graph, held.local);
  held = {graph_.add_op("aten.alias.default", {ValueArgument{held.local}}, type),
          graph_.phase(),
          false};
}

bool LocalValues::is_run_input(ValueId value) const {
  return graph_.source.values[at(value)].producer == kNone && !received_.contains(value);
}

std::optional<ValueId> LocalValues::find(ValueId value, const Placement& placement) const {
  const auto found = held_.find({value, placement});
  if (found == held_.end()) return std::nullopt;
  for (const Held& held : found->second) {
    if (held.input || held.phase == graph_.phase()) return held.local;
    // Values made of a parameter are recomputed in each phase, so a gathered parameter is not kept.
    if (is_run_input(value) && !saved_.contains(value)) continue;
    const Lifetime lifetime = graph_.stage.lifetimes[at(held.local)];
    if (held.phase < graph_.phase() &&
        (lifetime == Lifetime::kStep || graph_.phase() == Phase::kBackward))
      return held.local;
  }
  return std::nullopt;
}

Placement LocalValues::on_axes_that_matter(Placement placement, const Placement& as) const {
  for (size_t axis = 0; axis < graph_.stage.mesh.size(); ++axis)
    if (graph_.stage.mesh[axis] == 1) placement[axis] = as[axis];
  return placement;
}

// Merges sums over both axes into one over the mesh.
std::vector<AxisRedistribution> LocalValues::redistributions(const Placement& from,
                                                             const Placement& to) const {
  if (graph_.stage.mesh.size() > 1 && from == Placement(graph_.stage.mesh.size(), partial_sum()) &&
      to == graph_.whole())
    return {{kWholeMesh, from, to}};
  std::vector<AxisRedistribution> result;
  Placement now = from;
  for (const RedistributionStep& step : redistribution_steps(from, to)) {
    Placement next = now;
    next[at(step.axis)] = step.to;
    result.push_back({step.axis, now, next});
    now = std::move(next);
  }
  return result;
}

ValueId LocalValues::in_placement(ValueId value, const Placement& wanted) {
  if (const auto unfinished = unfinished_.extract(value)) unfinished.mapped()();
  const Placement placement = on_axes_that_matter(wanted, own_placement(value));
  if (std::optional<ValueId> known = find(value, placement)) return *known;
  if (!started_.contains({value, placement}))
    if (std::optional<ValueId> view = view_of_converted(value, placement)) {
      define(value, placement, *view);
      return *view;
    }
  return convert(value, own_placement(value), placement);
}

// Redistributes values behind views at their origin, once for all views: partial sums, or gathered
// parameters.
std::optional<ValueId> LocalValues::view_of_converted(ValueId value, const Placement& placement) {
  const OpId producer = graph_.source.values[at(value)].producer;
  if (placement != graph_.whole() || producer == kNone) return std::nullopt;
  const Op& op = graph_.source.ops[at(producer)];
  const std::vector<ValueId> values = operands(op);
  if (work_class(op.name) != WorkClass::kView || values.size() != 1 || op.results.size() != 1 ||
      op.phase != graph_.phase())
    return std::nullopt;
  bool converts = false;
  for (size_t axis = 0; axis < placement.size(); ++axis) {
    const Holding from = own_placement(values[0])[axis].holding;
    if (from != own_placement(value)[axis].holding || from == Holding::kPartialMax ||
        (from == Holding::kSharded && !is_parameter_view(value)))
      return std::nullopt;
    converts = converts || from != Holding::kReplicated;
  }
  if (!converts) return std::nullopt;
  Op view = op;
  const ValueId operand = in_placement(values[0], placement);
  for_each_operand(view, [&](ValueId& each) { each = operand; });
  view.results.clear();
  return graph_.add_op(std::move(view), {graph_.local_type(value, placement)})[0];
}

bool LocalValues::is_parameter_view(ValueId value) const {
  const OpId producer = graph_.source.values[at(value)].producer;
  if (received_.contains(value)) return false;
  if (producer == kNone)
    return graph_.stage.lifetimes[at(held_.at({value, own_placement(value)})[0].local)] ==
           Lifetime::kRun;
  const Op& op = graph_.source.ops[at(producer)];
  const std::vector<ValueId> values = operands(op);
  return work_class(op.name) == WorkClass::kView && values.size() == 1 && values[0] != kNone &&
         is_parameter_view(values[0]);
}

ValueId LocalValues::convert(ValueId value, const Placement& from, const Placement& to) {
  ValueId local = held(value, from);
  for (const AxisRedistribution& step : redistributions(from, to)) {
    if (const std::optional<ValueId> known = find(value, step.to)) {
      local = *known;
      continue;
    }
    const auto started = started_.find({value, step.to});
    local = started != started_.end() ? redistribution_.finish(value, started->second, step.to)
                                      : convert(value, step);
    define(value, step.to, local);
  }
  return local;
}

ValueId LocalValues::held(ValueId value, const Placement& placement) const {
  if (const std::optional<ValueId> local = find(value, placement)) return *local;
  const OpId producer = graph_.source.values[at(value)].producer;
  throw Error(
      Blame::kCaller,
      fmt::format("graph \"{}\": what {} gives: found it read in the {} phase, expected nothing to "
                  "leave the prologue but normalisers of losses, which depend on the batch only",
                  graph_.source.name,
                  producer == kNone ? "an input" : graph_.source.ops[at(producer)].name,
                  to_string(graph_.phase())));
}

ValueId LocalValues::convert(ValueId value, const AxisRedistribution& step) {
  const ValueId local = held(value, step.from);
  const AxisPlacement &from = step.old_placement(), &to = step.new_placement();
  const bool reduces = from.holding == Holding::kPartialSum || from.holding == Holding::kPartialMax;
  if (step.is_local()) return redistribution_.convert_locally(value, local, step);
  if (from.holding == Holding::kPartialMax && to.holding != Holding::kReplicated) {
    const Placement whole_maximum = step.gathered();
    const ValueId maximum = convert(value, step.from, whole_maximum);
    return redistribution_.convert_locally(value, maximum, {step.axis, whole_maximum, step.to});
  }
  MEDLEY_CHECK(!reduces || to.holding == Holding::kReplicated || to.holding == Holding::kSharded);
  return redistribution_.finish(value, redistribution_.begin(value, local, step), step.to);
}

void LocalValues::agree(ValueId value) {
  const Placement own = own_placement(value);
  for (size_t axis = 0; axis < graph_.stage.mesh.size(); ++axis) {
    if (own[axis].holding != Holding::kReplicated || graph_.stage.mesh[axis] == 1) continue;
    Placement partial = own;
    partial[axis] = partial_sum();
    const ValueId local = redistribution_.convert_locally(
        value, held(value, own), {static_cast<int>(axis), own, partial});
    const ValueId sum = redistribution_.finish(
        value,
        redistribution_.all_reduce(value, local, {static_cast<int>(axis), partial, own}),
        own);
    held_[{value, own}].clear();
    define(value, own, sum);
  }
}

// Redistributes locally before the first communication, which makes that smaller.
void LocalValues::start(ValueId value, const Placement& wanted) {
  const Placement placement = on_axes_that_matter(wanted, own_placement(value));
  if (find(value, placement)) return;
  for (const AxisRedistribution& step : redistributions(own_placement(value), placement)) {
    if (step.is_local() || find(value, step.to)) continue;
    const ValueId local = convert(value, own_placement(value), step.from);
    const bool sums = step.old_placement() == partial_sum() && step.new_placement() == replicated();
    started_[{value, step.to}] = sums ? redistribution_.all_reduce_in_bucket(value, local, step)
                                      : redistribution_.begin(value, local, step);
    return;
  }
}

}  // namespace medley
