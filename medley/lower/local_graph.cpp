#include "medley/lower/local_graph.h"

#include <algorithm>

#include "medley/graph/replace_bf16.h"
#include "medley/ops/update_ops.h"

namespace medley {

Size product(const std::vector<Size>& sizes, size_t first, size_t last) {
  Size all(1);
  for (size_t i = first; i < last; ++i) all = all * sizes[i];
  return all;
}

LocalGraph::LocalGraph(const DecidedStage& decided)
    : completed(decided.completed),
      source(decided.completed.prepared->graph),
      symbols(decided.completed.assignment.parts, decided.mesh) {
  stage.graph.name = source.name;
  stage.devices = decided.devices;
  stage.mesh = decided.mesh;
  stage.pipeline = decided.pipeline;
  stage.bf16_as = decided.bf16_as;
  stage.workspaces = decided.workspaces;
}

void LocalGraph::enter(Phase phase, bool last_only) {
  phase_ = phase;
  last_only_ = last_only;
}

ValueId LocalGraph::add_input(InputKind kind, const std::string& name, const TensorType& type) {
  const ValueId local = medley::add_input(stage.graph, kind, name, type);
  const bool microbatch = kind == InputKind::kBatch || kind == InputKind::kReceived;
  stage.lifetimes.push_back(microbatch ? Lifetime::kMicrobatch : Lifetime::kRun);
  return local;
}

std::vector<ValueId> LocalGraph::add_op(Op op, const std::vector<TensorType>& types) {
  op.phase = phase_;
  const Lifetime lives = accumulates(op) ? Lifetime::kStep : lifetime();
  items[phase_].push_back({Item::Kind::kOp, static_cast<int>(stage.graph.ops.size()), last_only_});
  std::vector<ValueId> results = medley::add_op(stage.graph, std::move(op), types);
  stage.lifetimes.resize(stage.graph.values.size(), lives);
  return results;
}

ValueId LocalGraph::add_op(std::string name,
                           std::vector<Argument> arguments,
                           const TensorType& type) {
  return add_op({std::move(name), std::move(arguments), {}, phase_, "", ""}, {type})[0];
}

ValueId LocalGraph::add_value(const TensorType& type, Lifetime lifetime) {
  stage.graph.values.push_back({type, kNone, 0});
  stage.lifetimes.push_back(lifetime);
  return static_cast<ValueId>(stage.graph.values.size() - 1);
}

Lifetime LocalGraph::lifetime() const {
  return phase_ == Phase::kUpdate || last_only_ ? Lifetime::kStep : Lifetime::kMicrobatch;
}

ValueId LocalGraph::cast(ValueId local, DType dtype) {
  TensorType type = type_of(stage.graph, local);
  if (type.dtype == dtype) return local;
  type.dtype = dtype;
  return add_op("aten._to_copy.default",
                {ValueArgument{local},
                 dtype,
                 NoneArgument{},
                 NoneArgument{},
                 NoneArgument{},
                 false,
                 NoneArgument{}},
                type);
}

ValueId LocalGraph::on_wire(ValueId local, DType wire) {
  return cast(local, replace_bf16(type_of(stage.graph, local).dtype, wire));
}

ValueId LocalGraph::view(ValueId local, const TensorType& type) {
  return add_op("aten.view.default", {ValueArgument{local}, type.shape}, type);
}

ValueId LocalGraph::zeros(const TensorType& type) {
  const NoneArgument none;
  return add_op("aten.full.default", {type.shape, 0.0, type.dtype, none, none, none}, type);
}

ValueId LocalGraph::keep_first(ValueId local, int axis, const TensorType& type) {
  return add_op("medley.keep_first.default", {ValueArgument{local}, symbols.me(axis)}, type);
}

ValueId LocalGraph::shard(ShardOp op, ValueId local, const Piece& piece, const TensorType& type) {
  std::vector<Argument> arguments{ValueArgument{local},
                                  piece.before,
                                  piece.full,
                                  piece.after,
                                  piece.offset,
                                  piece.length,
                                  type.shape};
  const bool places = op == ShardOp::kPlace;
  if (places) arguments.emplace_back(0.0);  // padding
  return add_op(
      places ? "medley.place.default" : "medley.take.default", std::move(arguments), type);
}

ValueId LocalGraph::pack(ValueId local,
                         const Size& before,
                         const std::vector<Size>& lengths,
                         const Size& after,
                         const TensorType& flat) {
  return add_op("medley.pack.default", {ValueArgument{local}, before, lengths, after}, flat);
}

ValueId LocalGraph::unpack(ValueId flat,
                           const Size& before,
                           const std::vector<Size>& lengths,
                           const Size& after,
                           const TensorType& type) {
  return add_op(
      "medley.unpack.default", {ValueArgument{flat}, before, lengths, after, type.shape}, type);
}

ValueId LocalGraph::keep_for_update(ValueId local) {
  Lifetime& lifetime = stage.lifetimes[at(local)];
  if (lifetime != Lifetime::kMicrobatch) return local;
  if (is_input(stage, local)) {
    const TensorType type = type_of(stage.graph, local);
    return keep_for_update(add_op("aten.alias.default", {ValueArgument{local}}, type));
  }
  lifetime = Lifetime::kStep;
  return local;
}

int LocalGraph::add(Communication communication) {
  stage.communications.push_back(std::move(communication));
  return static_cast<int>(stage.communications.size()) - 1;
}

void LocalGraph::post(int communication) {
  items[phase_].push_back({Item::Kind::kPost, communication, last_only_});
}

void LocalGraph::wait(int communication) {
  const auto awaits = [&](const Item& item) {
    return item.kind == Item::Kind::kWait && item.index == communication;
  };
  for (const auto& [phase, order] : items)
    if (std::ranges::any_of(order, awaits)) return;
  items[phase_].push_back({Item::Kind::kWait, communication, last_only_});
}

std::vector<Size> LocalGraph::local_factors(ValueId value, const Placement& placement) {
  const auto share = shares.find(value);
  std::vector<Size> sizes;
  for (ExtentId extent : flat_factors(*completed.factors, value)) {
    const Size& full = completed.factors->extent_sizes[at(extent)];
    const int position = static_cast<int>(sizes.size());
    sizes.push_back(share != shares.end() && share->second.position == position
                        ? symbols.length_within(placement, position, full, share->second.interval)
                        : symbols.length(placement, position, full));
  }
  return sizes;
}

TensorType LocalGraph::local_type(ValueId value, const Placement& placement) {
  const std::vector<Size> sizes = local_factors(value, placement);
  TensorType type{whole_type(value).dtype, {}};
  size_t next = 0;
  for (const auto& dim : completed.factors->values[at(value)]) {
    type.shape.push_back(product(sizes, next, next + dim.size()));
    next += dim.size();
  }
  return type;
}

const Size& LocalGraph::full_size(ValueId value, int position) const {
  const std::vector<ExtentId> flat = flat_factors(*completed.factors, value);
  return completed.factors->extent_sizes[at(flat[at(position)])];
}

std::string LocalGraph::label(ValueId value) const {
  for (const Input& input : source.inputs)
    if (input.value == value) return input.name;
  return completed.prepared->names[at(source.values[at(value)].producer)];
}

}  // namespace medley
