#include "medley/lower/emitter.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"
#include "medley/program/calls.h"
#include "medley/sharding/conversion.h"

namespace medley {

Emitter::Emitter(const Completed& completed,
                 const std::vector<int64_t>& mesh,
                 const LowerOptions& options)
    : symbols(completed.assignment.parts, mesh),
      completed_(completed),
      graph_(completed.prepared->graph),
      mesh_(mesh),
      options_(options) {
  stage.graph.name = graph_.name;
}

void Emitter::enter(Phase phase, bool last_only) {
  phase_ = phase;
  last_only_ = last_only;
}

Op Emitter::local_op(std::string name, std::vector<Argument> arguments) const {
  return {std::move(name), std::move(arguments), {}, phase_, "", ""};
}

Size Emitter::product(const std::vector<Size>& sizes, size_t first, size_t last) const {
  Size all(1);
  for (size_t i = first; i < last; ++i) all = all * sizes[i];
  return all;
}

const Size& Emitter::full_size(ValueId value, int position) const {
  const std::vector<ExtentId> flat = flat_factors(*completed_.factors, value);
  return completed_.factors->extent_sizes[at(flat[at(position)])];
}

std::vector<Size> Emitter::local_factors(ValueId value, const State& state) {
  std::vector<Size> sizes;
  for (ExtentId extent : flat_factors(*completed_.factors, value)) {
    const Size& full = completed_.factors->extent_sizes[at(extent)];
    const int position = static_cast<int>(sizes.size());
    const OwnedShare* share = find_share(value);
    sizes.push_back(share && share->position == position
                        ? symbols.length_within(state, position, full, share->interval)
                        : symbols.length(state, position, full));
  }
  return sizes;
}

TensorType Emitter::local_type(ValueId value, const State& state) {
  const std::vector<Size> sizes = local_factors(value, state);
  TensorType type{graph_.values[at(value)].type.dtype, {}};
  size_t next = 0;
  for (const auto& dim : completed_.factors->values[at(value)]) {
    type.shape.push_back(product(sizes, next, next + dim.size()));
    next += dim.size();
  }
  return type;
}

bool Emitter::is_run_input(ValueId value) const {
  return graph_.values[at(value)].producer == kNone && !received_.contains(value);
}

ValueId Emitter::add_local_input(const Input& input, const State& state) {
  const ValueId local =
      add_input(stage.graph, input.kind, input.name, local_type(input.value, state));
  const bool microbatch = input.kind == InputKind::kBatch || input.kind == InputKind::kReceived;
  stage.lifetimes.push_back(microbatch ? Lifetime::kMicrobatch : Lifetime::kRun);
  held_[{input.value, state}].push_back({local, Phase::kPrologue, true});
  return local;
}

std::vector<ValueId> Emitter::add_local_op(Op op, const std::vector<TensorType>& types) {
  op.phase = phase_;
  const bool step = phase_ == Phase::kUpdate || last_only_ || accumulates(op);
  items[phase_].push_back({Item::Kind::kOp, static_cast<int>(stage.graph.ops.size()), last_only_});
  std::vector<ValueId> results = add_op(stage.graph, std::move(op), types);
  stage.lifetimes.resize(stage.graph.values.size(), step ? Lifetime::kStep : Lifetime::kMicrobatch);
  return results;
}

ValueId Emitter::cast(ValueId local, DType dtype) {
  TensorType type = stage.graph.values[at(local)].type;
  if (type.dtype == dtype) return local;
  type.dtype = dtype;
  return add_local_op(local_op("aten._to_copy.default",
                               {ValueArgument{local},
                                dtype,
                                NoneArgument{},
                                NoneArgument{},
                                NoneArgument{},
                                false,
                                NoneArgument{}}),
                      {type})[0];
}

ValueId Emitter::on_wire(ValueId local, DType wire) {
  return cast(local, replace_bf16(stage.graph.values[at(local)].type.dtype, wire));
}

ValueId Emitter::add_local_value(const TensorType& type, Lifetime lifetime) {
  stage.graph.values.push_back({type, kNone, 0});
  stage.lifetimes.push_back(lifetime);
  return static_cast<ValueId>(stage.graph.values.size() - 1);
}

void Emitter::define(ValueId value, const State& state, ValueId local, Phase phase) {
  held_[{value, state}].push_back({local, phase, false});
}

void Emitter::save_for_backward(ValueId input) {
  saved_.insert(input);
  Held& held = held_.at({input, own_state(input)})[0];
  const TensorType type = stage.graph.values[at(held.local)].type;
  held = {add_local_op(local_op("aten.alias.default", {ValueArgument{held.local}}), {type})[0],
          phase_,
          false};
}

ValueId Emitter::keep_for_update(ValueId local) {
  const Value value = stage.graph.values[at(local)];
  Lifetime& lifetime = stage.lifetimes[at(local)];
  if (lifetime != Lifetime::kMicrobatch) return local;
  const bool batch = std::ranges::any_of(stage.graph.inputs,
                                         [&](const Input& input) { return input.value == local; });
  if (batch)
    return keep_for_update(
        add_local_op(local_op("aten.alias.default", {ValueArgument{local}}), {value.type})[0]);
  lifetime = Lifetime::kStep;
  return local;
}

std::optional<ValueId> Emitter::find(ValueId value, const State& state) const {
  const auto found = held_.find({value, state});
  if (found == held_.end()) return std::nullopt;
  for (const Held& held : found->second) {
    if (held.input || held.phase == phase_) return held.local;
    // What was made of a parameter is made again in each phase: a gathered parameter is not kept.
    if (is_run_input(value) && !saved_.contains(value)) continue;
    const Lifetime lifetime = stage.lifetimes[at(held.local)];
    if (held.phase < phase_ && (lifetime == Lifetime::kStep || phase_ == Phase::kBackward))
      return held.local;
  }
  return std::nullopt;
}

State Emitter::on_axes_that_matter(State state, const State& as) const {
  for (size_t axis = 0; axis < mesh_.size(); ++axis)
    if (mesh_[axis] == 1) state[axis] = as[axis];
  return state;
}

State Emitter::Conversion::gathered() const {
  State state = to;
  for (size_t i = 0; i < state.size(); ++i)
    if (axis < 0 || axis == static_cast<int>(i)) state[i] = replicated();
  return state;
}

// Sums over both axes are one over the mesh.
std::vector<Emitter::Conversion> Emitter::conversions(const State& from, const State& to) const {
  if (mesh_.size() > 1 && from == State(mesh_.size(), partial_sum()) && to == whole())
    return {{kWholeMesh, from, to}};
  std::vector<Conversion> result;
  State now = from;
  for (const ConversionStep& step : conversion_steps(from, to)) {
    State next = now;
    next[at(step.axis)] = step.to;
    result.push_back({step.axis, now, next});
    now = std::move(next);
  }
  return result;
}

ValueId Emitter::in_state(ValueId value, const State& wanted) {
  if (const auto relayed = relayed_.find(value); relayed != relayed_.end())
    finish_relay(value, relayed->second);
  const State state = on_axes_that_matter(wanted, own_state(value));
  if (std::optional<ValueId> known = find(value, state)) return *known;
  if (const auto receiving = receiving_.find(value); receiving != receiving_.end()) {
    const Awaited awaited = std::move(receiving->second);
    receiving_.erase(receiving);
    define(value, own_state(value), finish_receiving(value, awaited), phase_);
    return in_state(value, state);
  }
  if (!started_.contains({value, state}))
    if (std::optional<ValueId> view = view_of_converted(value, state)) {
      define(value, state, *view, phase_);
      return *view;
    }
  return convert(value, own_state(value), state);
}

// What only passed through views is converted where it was made, once for all of its views: a
// partial sum, or a parameter that is gathered.
std::optional<ValueId> Emitter::view_of_converted(ValueId value, const State& state) {
  const OpId producer = graph_.values[at(value)].producer;
  if (state != whole() || producer == kNone) return std::nullopt;
  const Op& op = graph_.ops[at(producer)];
  const std::vector<ValueId> values = operands(op);
  if (work_class(op.name) != WorkClass::kView || values.size() != 1 || op.results.size() != 1 ||
      op.phase != phase_)
    return std::nullopt;
  bool converts = false;
  for (size_t axis = 0; axis < state.size(); ++axis) {
    const Holding from = own_state(values[0])[axis].holding;
    if (from != own_state(value)[axis].holding || from == Holding::kPartialMax ||
        (from == Holding::kSharded && !is_parameter_view(value)))
      return std::nullopt;
    converts = converts || from != Holding::kReplicated;
  }
  if (!converts) return std::nullopt;
  Op view = op;
  const ValueId operand = in_state(values[0], state);
  for_each_operand(view, [&](ValueId& each) { each = operand; });
  view.results.clear();
  return add_local_op(std::move(view), {local_type(value, state)})[0];
}

bool Emitter::is_parameter_view(ValueId value) const {
  const OpId producer = graph_.values[at(value)].producer;
  if (received_.contains(value)) return false;
  if (producer == kNone)
    return stage.lifetimes[at(held_.at({value, own_state(value)})[0].local)] == Lifetime::kRun;
  const Op& op = graph_.ops[at(producer)];
  const std::vector<ValueId> values = operands(op);
  return work_class(op.name) == WorkClass::kView && values.size() == 1 && values[0] != kNone &&
         is_parameter_view(values[0]);
}

ValueId Emitter::convert(ValueId value, const State& from, const State& to) {
  ValueId local = held(value, from);
  for (const Conversion& step : conversions(from, to)) {
    if (const std::optional<ValueId> known = find(value, step.to)) {
      local = *known;
      continue;
    }
    const auto started = started_.find({value, step.to});
    local =
        started != started_.end() ? finish(value, started->second, step.to) : convert(value, step);
    define(value, step.to, local, phase_);
  }
  return local;
}

ValueId Emitter::held(ValueId value, const State& state) const {
  if (const std::optional<ValueId> local = find(value, state)) return *local;
  const OpId producer = graph_.values[at(value)].producer;
  throw Error(
      Blame::kCaller,
      fmt::format("graph \"{}\": what {} gives: found it read in the {} phase, expected nothing to "
                  "leave the prologue but weights of losses, which depend on the batch only",
                  graph_.name,
                  producer == kNone ? "an input" : graph_.ops[at(producer)].name,
                  to_string(phase_)));
}

// Without a word to the others.
bool Emitter::is_local(const Conversion& step) const {
  const AxisState &from = step.old_state(), &to = step.new_state();
  return from.holding == Holding::kReplicated ||
         (to.holding == Holding::kPartialSum && from.holding == Holding::kSharded);
}

ValueId Emitter::convert(ValueId value, const Conversion& step) {
  const ValueId local = held(value, step.from);
  const AxisState &from = step.old_state(), &to = step.new_state();
  const bool reduces = from.holding == Holding::kPartialSum || from.holding == Holding::kPartialMax;
  if (is_local(step)) return convert_locally(value, local, step);
  if (from.holding == Holding::kPartialMax && to.holding != Holding::kReplicated) {
    const State whole_maximum = step.gathered();
    const ValueId maximum = convert(value, step.from, whole_maximum);
    return convert_locally(value, maximum, {step.axis, whole_maximum, step.to});
  }
  MEDLEY_CHECK(!reduces || to.holding == Holding::kReplicated || to.holding == Holding::kSharded);
  return finish(value, begin(value, local, step), step.to);
}

ValueId Emitter::convert_locally(ValueId value, ValueId local, const Conversion& step) {
  const AxisState &from = step.old_state(), &to = step.new_state();
  const TensorType type = local_type(value, step.to);
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialMax) return local;
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialSum)
    return add_local_op(
        local_op("medley.keep_first.default", {ValueArgument{local}, symbols.me(step.axis)}),
        {type})[0];
  const AxisState& cut = from.holding == Holding::kSharded ? from : to;
  MEDLEY_CHECK(cut.holding == Holding::kSharded);
  const std::vector<Size> sizes = local_factors(value, step.gathered());
  const auto position = at(cut.position);
  // Of what the other axis has left.
  State alone = whole();
  alone[at(step.axis)] = cut;
  return shard(from.holding == Holding::kSharded ? ShardOp::kPlace : ShardOp::kTake,
               local,
               {product(sizes, 0, position),
                sizes[position],
                product(sizes, position + 1, sizes.size()),
                symbols.offset(alone, cut.position, sizes[position]),
                symbols.length(alone, cut.position, sizes[position])},
               type);
}

std::vector<Size> Emitter::lengths_of(int axis, int part, const Size& full) {
  std::vector<Size> lengths;
  for (int device = 0; device < mesh_[at(axis)]; ++device)
    lengths.push_back(symbols.length_of(axis, part, full, device));
  return lengths;
}

ValueId Emitter::pack(ValueId local,
                      const Size& before,
                      const std::vector<Size>& lengths,
                      const Size& after,
                      const TensorType& flat) {
  return add_local_op(
      local_op("medley.pack.default", {ValueArgument{local}, before, lengths, after}), {flat})[0];
}

ValueId Emitter::unpack(ValueId flat,
                        const Size& before,
                        const std::vector<Size>& lengths,
                        const Size& after,
                        const TensorType& type) {
  return add_local_op(
      local_op("medley.unpack.default", {ValueArgument{flat}, before, lengths, after, type.shape}),
      {type})[0];
}

ValueId Emitter::shard(ShardOp op, ValueId local, const Piece& piece, const TensorType& type) {
  std::vector<Argument> arguments{ValueArgument{local},
                                  piece.before,
                                  piece.full,
                                  piece.after,
                                  piece.offset,
                                  piece.length,
                                  type.shape};
  const bool places = op == ShardOp::kPlace;
  if (places) arguments.emplace_back(0.0);  // around it
  return add_local_op(
      local_op(places ? "medley.place.default" : "medley.take.default", std::move(arguments)),
      {type})[0];
}

std::string Emitter::label(ValueId value) const {
  for (const Input& input : graph_.inputs)
    if (input.value == value) return input.name;
  const OpId producer = graph_.values[at(value)].producer;
  return completed_.prepared->names[at(producer)];
}

void Emitter::post(int communication) {
  items[phase_].push_back({Item::Kind::kPost, communication, last_only_});
}

Emitter::Started Emitter::exchange(Communication communication,
                                   ValueId input,
                                   const TensorType& received,
                                   const AxisState& from) {
  const int id = static_cast<int>(stage.communications.size());
  communication.inputs = {on_wire(input, wire())};
  const bool step = phase_ == Phase::kUpdate || last_only_;
  communication.outputs = {add_local_value(replace_bf16(received, wire()),
                                           step ? Lifetime::kStep : Lifetime::kMicrobatch)};
  stage.communications.push_back(communication);
  post(id);
  return {id, communication.outputs[0], from};
}

Communication Emitter::communication_for(CommunicationKind kind,
                                         const Conversion& step,
                                         ValueId value) const {
  Communication communication;
  communication.kind = kind;
  communication.axis = step.axis;
  if (step.old_state().holding == Holding::kPartialMax) communication.reduce = Reduce::kMax;
  communication.name = to_string(kind) + " " + label(value);
  return communication;
}

Emitter::Started Emitter::begin(ValueId value, ValueId local, const Conversion& step) {
  const Holding from = step.old_state().holding;
  if (step.new_state().holding == Holding::kReplicated)
    return from == Holding::kSharded ? gather(value, local, step) : all_reduce(value, local, step);
  return from == Holding::kPartialSum ? reduce_scatter(value, local, step)
                                      : all_to_all(value, local, step);
}

Emitter::Started Emitter::all_reduce(ValueId value, ValueId local, const Conversion& step) {
  return exchange(communication_for(CommunicationKind::kAllReduce, step, value),
                  local,
                  local_type(value, step.to),
                  partial_sum());
}

Emitter::Started Emitter::gather(ValueId value, ValueId local, const Conversion& step) {
  const AxisState& from = step.old_state();
  std::vector<Size> sizes = local_factors(value, step.to);
  const auto position = at(from.position);
  const Size full = sizes[position];
  const Size rest = product(sizes, 0, position) * product(sizes, position + 1, sizes.size());
  Communication communication = communication_for(CommunicationKind::kAllGather, step, value);
  for (const Size& length : lengths_of(step.axis, from.part, full))
    communication.receive.push_back(length * rest);
  return exchange(
      std::move(communication), local, {graph_.values[at(value)].type.dtype, {full * rest}}, from);
}

Emitter::Started Emitter::reduce_scatter(ValueId value, ValueId local, const Conversion& step) {
  const AxisState& to = step.new_state();
  const std::vector<Size> sizes = local_factors(value, step.gathered());
  const auto position = at(to.position);
  const Size& full = sizes[position];
  const Size before = product(sizes, 0, position),
             after = product(sizes, position + 1, sizes.size());
  const DType dtype = graph_.values[at(value)].type.dtype;
  const std::vector<Size> lengths = lengths_of(step.axis, to.part, full);
  const ValueId packed = pack(local, before, lengths, after, {dtype, {before * full * after}});
  Communication communication = communication_for(CommunicationKind::kReduceScatter, step, value);
  for (const Size& length : lengths) communication.send.push_back(before * length * after);
  return exchange(std::move(communication),
                  packed,
                  {dtype, {before * local_factors(value, step.to)[position] * after}},
                  partial_sum());
}

Emitter::Started Emitter::all_to_all(ValueId value, ValueId local, const Conversion& step) {
  const AxisState &from = step.old_state(), &to = step.new_state();
  const std::vector<Size> whole = local_factors(value, step.gathered());
  const auto cut = at(to.position);
  std::vector<Size> have = local_factors(value, step.from), want = local_factors(value, step.to);
  const Size have_rest = product(have, 0, cut) * product(have, cut + 1, have.size());
  const auto old_cut = at(from.position);
  const Size want_rest = product(want, 0, old_cut) * product(want, old_cut + 1, want.size());
  std::vector<Size> sent, received;
  const int axis = step.axis;
  for (int device = 0; device < mesh_[at(axis)]; ++device) {
    const bool same = cut == old_cut;
    const Size& full = whole[cut];
    sent.push_back(same ? symbols.sent(axis, {from.part, full}, {to.part, full}, full, device)
                        : symbols.length_of(axis, to.part, whole[cut], device));
    received.push_back(
        same ? symbols.received(axis, {from.part, full}, {to.part, full}, full, device)
             : symbols.length_of(axis, from.part, whole[old_cut], device));
  }
  const DType dtype = graph_.values[at(value)].type.dtype;
  const ValueId packed = pack(local,
                              product(have, 0, cut),
                              sent,
                              product(have, cut + 1, have.size()),
                              {dtype, {product(have, 0, have.size())}});
  Communication communication = communication_for(CommunicationKind::kAllToAll, step, value);
  for (const Size& length : sent) communication.send.push_back(length * have_rest);
  for (const Size& length : received) communication.receive.push_back(length * want_rest);
  return exchange(std::move(communication), packed, {dtype, {product(want, 0, want.size())}}, from);
}

// A bucket is awaited once: what a relay has waited for in the backward phase is there.
void Emitter::wait(int communication) {
  const auto awaits = [&](const Item& item) {
    return item.kind == Item::Kind::kWait && item.index == communication;
  };
  for (const auto& [phase, order] : items)
    if (std::ranges::any_of(order, awaits)) return;
  items[phase_].push_back({Item::Kind::kWait, communication, last_only_});
}

ValueId Emitter::finish(ValueId value, const Started& started, const State& to) {
  wait(started.communication);
  const Communication& communication = stage.communications[at(started.communication)];
  const TensorType type = local_type(value, to);
  const ValueId arrived = cast(started.received, type.dtype);
  if (communication.kind == CommunicationKind::kAllReduce) return arrived;
  if (communication.kind == CommunicationKind::kReduceScatter)
    return add_local_op(local_op("aten.view.default", {ValueArgument{arrived}, type.shape}),
                        {type})[0];
  const std::vector<Size> sizes = local_factors(value, to);
  const auto position = at(started.from.position);
  const Size before = product(sizes, 0, position),
             after = product(sizes, position + 1, sizes.size());
  std::vector<Size> lengths;
  for (const Size& received : communication.receive) {
    const std::optional<Size> length = divide(received, before * after);
    if (!length)
      throw Error(Blame::kCaller,
                  fmt::format("graph \"{}\": {}: found a tensor without elements that is cut, "
                              "expected no dim of size 0",
                              graph_.name,
                              label(value)));
    lengths.push_back(*length);
  }
  return unpack(arrived, before, lengths, after, type);
}

void Emitter::agree(ValueId value) {
  const State own = own_state(value);
  for (size_t axis = 0; axis < mesh_.size(); ++axis) {
    if (own[axis].holding != Holding::kReplicated || mesh_[axis] == 1) continue;
    State partial = own;
    partial[axis] = partial_sum();
    const ValueId local =
        convert_locally(value, held(value, own), {static_cast<int>(axis), own, partial});
    const ValueId sum =
        finish(value, all_reduce(value, local, {static_cast<int>(axis), partial, own}), own);
    held_[{value, own}].clear();
    define(value, own, sum, phase_);
  }
}

// What is local before the first communication is done first: it makes that smaller.
void Emitter::start(ValueId value, const State& wanted) {
  const State state = on_axes_that_matter(wanted, own_state(value));
  if (find(value, state)) return;
  for (const Conversion& step : conversions(own_state(value), state)) {
    if (is_local(step) || find(value, step.to)) continue;
    const ValueId local = convert(value, own_state(value), step.from);
    const bool sums = step.old_state() == partial_sum() && step.new_state() == replicated();
    started_[{value, step.to}] =
        sums ? all_reduce_in_bucket(value, local, step) : begin(value, local, step);
    return;
  }
}

Emitter::Started Emitter::all_reduce_in_bucket(ValueId value,
                                               ValueId local,
                                               const Conversion& step) {
  const TensorType type = replace_bf16(local_type(value, step.to), wire());
  const auto post_bucket = [&] {
    post(buckets_.at(step.axis).communication);
    buckets_.erase(step.axis);
  };
  if (const auto open = buckets_.find(step.axis); open != buckets_.end()) {
    const ValueId other = stage.communications[at(open->second.communication)].inputs[0];
    if (stage.graph.values[at(other)].type.dtype != type.dtype) post_bucket();
  }
  if (!buckets_.contains(step.axis)) {
    buckets_[step.axis].communication = static_cast<int>(stage.communications.size());
    stage.communications.push_back(communication_for(CommunicationKind::kAllReduce, step, value));
    stage.communications.back().name = "all_reduce gradients from " + label(value);
  }
  const ValueId sent = on_wire(local, wire());
  Bucket& bucket = buckets_.at(step.axis);
  const int id = bucket.communication;
  Communication& communication = stage.communications[at(id)];
  communication.inputs.push_back(sent);
  communication.outputs.push_back(add_local_value(type, Lifetime::kStep));
  const Started started{id, communication.outputs.back(), step.old_state()};
  double bytes = static_cast<double>(num_bytes(graph_.values[at(value)].type, {1}));
  for (size_t axis = 0; axis < mesh_.size(); ++axis)
    if (step.to[axis].holding == Holding::kSharded) bytes /= static_cast<double>(mesh_[axis]);
  bucket.bytes += bytes;
  if (bucket.bytes >= static_cast<double>(options_.bucket_bytes)) post_bucket();
  return started;
}

void Emitter::flush_buckets() {
  for (const auto& [axis, bucket] : buckets_) post(bucket.communication);
  buckets_.clear();
}

}  // namespace medley
