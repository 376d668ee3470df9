#include "medley/lower/step_sums.h"

#include "medley/base/error.h"

namespace medley {
namespace {

// Returns the rows of a tensor of the whole batch, of which `one` is a micro-batch.
Size rows_in(const TensorType& all, const TensorType& one) {
  for (size_t d = 0; d < one.shape.size(); ++d)
    if (!one.shape[d].is_constant())
      return divide(all.shape[d], Size(one.shape[d].coefficient)).value();
  return Size(1);
}

ValueId all_reduce(LocalGraph& graph,
                   ValueId own,
                   const std::string& what,
                   const std::vector<int>& devices) {
  Communication communication;
  communication.kind = CommunicationKind::kAllReduce;
  communication.name = "all_reduce " + what;
  communication.devices = devices;
  communication.inputs = {own};
  const ValueId sum = graph.add_value(type_of(graph.stage.graph, own), Lifetime::kStep);
  communication.outputs = {sum};
  const int id = graph.add(std::move(communication));
  graph.post(id);
  graph.wait(id);
  return sum;
}

}  // namespace

StepSums::Rows StepSums::rows_of(ValueId value, const Size& all) {
  const std::vector<ExtentId> flat = flat_factors(*graph_.completed.factors, value);
  int position = 0;
  while (at(position) < flat.size() &&
         graph_.completed.factors->extent_sizes[at(flat[at(position)])].is_constant())
    ++position;
  MEDLEY_CHECK(at(position) < flat.size());
  const Size extent = graph_.completed.factors->extent_sizes[at(flat[at(position)])];
  // Rows of several elements that no op separates are never divided.
  const bool may_cut = extent == SymbolTable::rows();
  Placement placement = values_.own_placement(value);
  for (AxisPlacement& axis : placement)
    if (!may_cut || !axis.cuts(position)) axis = replicated();
  const std::vector<Size> sizes = graph_.local_factors(value, placement);
  return {position,
          placement,
          {product(sizes, 0, at(position)),
           all,
           Size(extent.coefficient) * product(sizes, at(position) + 1, sizes.size()),
           graph_.symbols.row(placement, position, SymbolTable::rows()),
           may_cut ? sizes[at(position)] : SymbolTable::rows()}};
}

ValueId StepSums::place_rows(ValueId value, const TensorType& type) {
  const Rows rows = rows_of(value, rows_in(type, graph_.whole_type(value)));
  ValueId own = graph_.cast(values_.in_placement(value, rows.placement), type.dtype);
  for (int axis = 0; axis < static_cast<int>(graph_.stage.mesh.size()); ++axis)
    if (graph_.stage.mesh[at(axis)] > 1 && !rows.placement[at(axis)].cuts(rows.position))
      own = graph_.keep_first(own, axis, TensorType(type_of(graph_.stage.graph, own)));
  return graph_.shard(ShardOp::kPlace, own, rows.piece, type);
}

ValueId StepSums::sum_rows(std::optional<ValueId> local,
                           const TensorType& type,
                           const std::string& what,
                           const std::vector<int>& devices) {
  const ValueId own = local ? *local : graph_.zeros(type);
  return devices.size() < 2 ? own : all_reduce(graph_, own, what + " over rows", devices);
}

ValueId StepSums::add_carried_input(const Input& input,
                                    const std::string& buffer,
                                    const TensorType& type) {
  const ValueId held = graph_.add_input(InputKind::kBuffer, buffer, type);
  const Rows rows = rows_of(input.value, rows_in(type, graph_.whole_type(input.value)));
  const ValueId taken = graph_.shard(
      ShardOp::kTake, held, rows.piece, graph_.local_type(input.value, rows.placement));
  values_.keep_made(input.value);
  const Placement wanted = values_.own_placement(input.value);
  const Placement from = values_.on_axes_that_matter(rows.placement, wanted);
  values_.define(input.value, from, taken);
  values_.convert(input.value, from, wanted);
  return held;
}

void StepSums::sum_over_stages(ValueId value,
                               const std::string& what,
                               const std::vector<int>& devices,
                               bool counts) {
  const TensorType type = graph_.local_type(value, graph_.whole());
  const ValueId own = values_.in_placement(value, graph_.whole());
  const ValueId sum =
      sum_over_stages(counts ? std::optional(own) : std::nullopt, type, what, devices);
  values_.redefine(
      value, values_.on_axes_that_matter(graph_.whole(), values_.own_placement(value)), sum);
}

ValueId StepSums::sum_over_stages(std::optional<ValueId> local,
                                  const TensorType& type,
                                  const std::string& what,
                                  const std::vector<int>& devices) {
  // Every stage adds once, whatever the number of its devices.
  ValueId own = kNone;
  if (local) {
    own = graph_.cast(*local, type.dtype);
    for (int axis = 0; axis < static_cast<int>(graph_.stage.mesh.size()); ++axis)
      own = graph_.keep_first(own, axis, type);
  } else {
    own = graph_.zeros(type);
  }
  return all_reduce(graph_, own, what + " over stages", devices);
}

}  // namespace medley
