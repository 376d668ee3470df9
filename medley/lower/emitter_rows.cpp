// Rows that every device has of the whole batch: what a step reports, or carries to the next one.

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/lower/emitter.h"

namespace medley {
namespace {

// The rows of a tensor of the whole batch, of which `one` is a micro-batch.
Size rows_in(const TensorType& all, const TensorType& one) {
  for (size_t d = 0; d < one.shape.size(); ++d)
    if (!one.shape[d].is_constant())
      return divide(all.shape[d], Size(one.shape[d].coefficient)).value();
  return Size(1);
}

}  // namespace

Emitter::Rows Emitter::rows_of(ValueId value, const Size& all) {
  const std::vector<ExtentId> flat = flat_factors(*completed_.factors, value);
  int position = 0;
  while (at(position) < flat.size() &&
         completed_.factors->extent_sizes[at(flat[at(position)])].is_constant())
    ++position;
  MEDLEY_CHECK(at(position) < flat.size());
  const Size extent = completed_.factors->extent_sizes[at(flat[at(position)])];
  // Rows of several elements that no op separates are divided nowhere.
  const bool may_cut = extent == SymbolTable::rows();
  State state = own_state(value);
  for (AxisState& axis : state)
    if (!may_cut || !axis.cuts(position)) axis = replicated();
  const std::vector<Size> sizes = local_factors(value, state);
  return {position,
          state,
          {product(sizes, 0, at(position)),
           all,
           Size(extent.coefficient) * product(sizes, at(position) + 1, sizes.size()),
           symbols.row(state, position, SymbolTable::rows()),
           may_cut ? sizes[at(position)] : SymbolTable::rows()}};
}

ValueId Emitter::place_rows(ValueId value, const TensorType& type) {
  const Rows rows = rows_of(value, rows_in(type, graph_.values[at(value)].type));
  ValueId own = cast(in_state(value, rows.state), type.dtype);
  for (int axis = 0; axis < static_cast<int>(mesh_.size()); ++axis)
    if (mesh_[at(axis)] > 1 && !rows.state[at(axis)].cuts(rows.position))
      own = add_local_op(
          local_op("medley.keep_first.default", {ValueArgument{own}, symbols.me(axis)}),
          {stage.graph.values[at(own)].type})[0];
  return shard(ShardOp::kPlace, own, rows.piece, type);
}

ValueId Emitter::sum_rows(std::optional<ValueId> local,
                          const TensorType& type,
                          const std::string& what,
                          const std::vector<int>& devices) {
  const ValueId own =
      local
          ? *local
          : add_local_op(
                local_op(
                    "aten.full.default",
                    {type.shape, 0.0, type.dtype, NoneArgument{}, NoneArgument{}, NoneArgument{}}),
                {type})[0];
  return devices.size() < 2 ? own : all_reduce_over(own, what + " over rows", devices);
}

ValueId Emitter::add_carried_input(const Input& input,
                                   const std::string& buffer,
                                   const TensorType& type) {
  const ValueId held = add_input(stage.graph, InputKind::kBuffer, buffer, type);
  stage.lifetimes.push_back(Lifetime::kRun);
  const Rows rows = rows_of(input.value, rows_in(type, graph_.values[at(input.value)].type));
  const ValueId taken =
      shard(ShardOp::kTake, held, rows.piece, local_type(input.value, rows.state));
  saved_.insert(input.value);
  const State wanted = own_state(input.value);
  const State from = on_axes_that_matter(rows.state, wanted);
  define(input.value, from, taken, phase_);
  convert(input.value, from, wanted);
  return held;
}

}  // namespace medley
