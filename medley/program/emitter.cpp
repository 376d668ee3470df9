#include "medley/program/emitter.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/ops/rule.h"

namespace medley {

Emitter::Emitter(const Completed& completed, int devices, const LowerOptions& options)
    : symbols(completed.assignment.parts, devices),
      completed_(completed),
      graph_(completed.prepared.graph),
      devices_(devices),
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
  const std::vector<ExtentId> flat = flat_factors(completed_.factors, value);
  return completed_.factors.extent_sizes[static_cast<size_t>(flat[static_cast<size_t>(position)])];
}

std::vector<Size> Emitter::local_factors(ValueId value, const AxisState& state) {
  std::vector<Size> sizes;
  for (ExtentId extent : flat_factors(completed_.factors, value))
    sizes.push_back(completed_.factors.extent_sizes[static_cast<size_t>(extent)]);
  if (state.holding == Holding::kSharded) {
    Size& cut = sizes[static_cast<size_t>(state.position)];
    cut = symbols.length(state.part, cut);
  }
  return sizes;
}

TensorType Emitter::local_type(ValueId value, const AxisState& state) {
  const std::vector<Size> sizes = local_factors(value, state);
  TensorType type{graph_.values[static_cast<size_t>(value)].type.dtype, {}};
  size_t next = 0;
  for (const auto& dim : completed_.factors.values[static_cast<size_t>(value)]) {
    type.shape.push_back(product(sizes, next, next + dim.size()));
    next += dim.size();
  }
  return type;
}

bool Emitter::is_run_input(ValueId value) const {
  return graph_.values[static_cast<size_t>(value)].producer == kNone && !received_.contains(value);
}

ValueId Emitter::add_local_input(const Input& input, const AxisState& state) {
  const ValueId local =
      add_input(stage.graph, input.kind, input.name, local_type(input.value, state));
  const bool microbatch = input.kind == InputKind::kBatch || input.kind == InputKind::kReceived;
  stage.lifetimes.push_back(microbatch ? Lifetime::kMicrobatch : Lifetime::kRun);
  held_[{input.value, state}].push_back({local, Phase::kPrologue, true});
  return local;
}

std::vector<ValueId> Emitter::add_local_op(Op op, const std::vector<TensorType>& types) {
  op.phase = phase_;
  const bool step =
      phase_ == Phase::kUpdate || last_only_ || op.name == "medley.accumulate.default";
  items[phase_].push_back({Item::Kind::kOp, static_cast<int>(stage.graph.ops.size()), last_only_});
  std::vector<ValueId> results = add_op(stage.graph, std::move(op), types);
  stage.lifetimes.resize(stage.graph.values.size(), step ? Lifetime::kStep : Lifetime::kMicrobatch);
  return results;
}

ValueId Emitter::add_local_value(const TensorType& type, Lifetime lifetime) {
  stage.graph.values.push_back({type, kNone, 0});
  stage.lifetimes.push_back(lifetime);
  return static_cast<ValueId>(stage.graph.values.size() - 1);
}

void Emitter::define(ValueId value, const AxisState& state, ValueId local, Phase phase) {
  held_[{value, state}].push_back({local, phase, false});
}

std::optional<ValueId> Emitter::find(ValueId value, const AxisState& state) const {
  const auto found = held_.find({value, state});
  if (found == held_.end()) return std::nullopt;
  for (const Held& held : found->second) {
    if (held.input || held.phase == phase_) return held.local;
    // What was made of a parameter is made again in each phase: a gathered parameter is not kept.
    if (is_run_input(value)) continue;
    const Lifetime lifetime = stage.lifetimes[static_cast<size_t>(held.local)];
    if (held.phase < phase_ && (lifetime == Lifetime::kStep || phase_ == Phase::kBackward))
      return held.local;
  }
  return std::nullopt;
}

ValueId Emitter::in_state(ValueId value, const AxisState& wanted) {
  // On one device all states are one.
  const AxisState state = devices_ == 1 ? own_state(value) : wanted;
  if (std::optional<ValueId> known = find(value, state)) return *known;
  if (const auto receiving = receiving_.find(value); receiving != receiving_.end()) {
    const Awaited awaited = std::move(receiving->second);
    receiving_.erase(receiving);
    define(value, own_state(value), finish_receiving(value, awaited), phase_);
    return in_state(value, state);
  }
  if (auto started = started_.find({value, state}); started != started_.end()) {
    const ValueId local = finish(value, started->second, state);
    define(value, state, local, phase_);
    return local;
  }
  ValueId local;
  if (std::optional<ValueId> view = view_of_converted(value, state)) {
    local = *view;
  } else {
    local = convert(value, own_state(value), state);
  }
  define(value, state, local, phase_);
  return local;
}

// What only passed through views is converted where it was made, once for all of its views: a
// partial sum, or a parameter that is gathered.
std::optional<ValueId> Emitter::view_of_converted(ValueId value, const AxisState& state) {
  const OpId producer = graph_.values[static_cast<size_t>(value)].producer;
  if (state.holding != Holding::kReplicated || producer == kNone) return std::nullopt;
  const Op& op = graph_.ops[static_cast<size_t>(producer)];
  const std::vector<ValueId> values = operands(op);
  if (work_class(op.name) != WorkClass::kView || values.size() != 1 || op.results.size() != 1 ||
      op.phase != phase_)
    return std::nullopt;
  const Holding from = own_state(values[0]).holding;
  const bool gathers = from == Holding::kSharded && is_parameter_view(value);
  if (from != own_state(value).holding || (from != Holding::kPartialSum && !gathers))
    return std::nullopt;
  Op view = op;
  const ValueId operand = in_state(values[0], state);
  for_each_operand(view, [&](ValueId& each) { each = operand; });
  view.results.clear();
  return add_local_op(std::move(view), {local_type(value, state)})[0];
}

bool Emitter::is_parameter_view(ValueId value) const {
  const OpId producer = graph_.values[static_cast<size_t>(value)].producer;
  if (received_.contains(value)) return false;
  if (producer == kNone)
    return stage.lifetimes[static_cast<size_t>(held_.at({value, own_state(value)})[0].local)] ==
           Lifetime::kRun;
  const Op& op = graph_.ops[static_cast<size_t>(producer)];
  const std::vector<ValueId> values = operands(op);
  return work_class(op.name) == WorkClass::kView && values.size() == 1 && values[0] != kNone &&
         is_parameter_view(values[0]);
}

ValueId Emitter::convert(ValueId value, const AxisState& from, const AxisState& to) {
  const std::optional<ValueId> held = find(value, from);
  if (!held) {
    const OpId producer = graph_.values[static_cast<size_t>(value)].producer;
    throw Error(
        Blame::kCaller,
        fmt::format(
            "graph \"{}\": what {} gives: found it read in the {} phase, expected nothing to "
            "leave the prologue but weights of losses, which depend on the batch only",
            graph_.name,
            producer == kNone ? "an input" : graph_.ops[static_cast<size_t>(producer)].name,
            to_string(phase_)));
  }
  const ValueId local = *held;
  const bool reduces = from.holding == Holding::kPartialSum || from.holding == Holding::kPartialMax;
  if (from.holding == Holding::kReplicated ||
      (to.holding == Holding::kPartialSum && from.holding == Holding::kSharded))
    return convert_locally(value, local, from, to);
  if (from.holding == Holding::kPartialMax && to.holding != Holding::kReplicated) {
    in_state(value, replicated());
    return convert_locally(value, *find(value, replicated()), replicated(), to);
  }
  MEDLEY_CHECK(!reduces || to.holding == Holding::kReplicated || to.holding == Holding::kSharded);
  return finish(value, begin(value, local, from, to), to);
}

ValueId Emitter::convert_locally(ValueId value,
                                 ValueId local,
                                 const AxisState& from,
                                 const AxisState& to) {
  const TensorType type = local_type(value, to);
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialMax) return local;
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialSum)
    return add_local_op(
        local_op("medley.keep_first.default", {ValueArgument{local}, SymbolTable::me()}),
        {type})[0];
  const AxisState& cut = from.holding == Holding::kSharded ? from : to;
  MEDLEY_CHECK(cut.holding == Holding::kSharded);
  const std::vector<Size> sizes = local_factors(value, replicated());
  const auto position = static_cast<size_t>(cut.position);
  return shard(from.holding == Holding::kSharded ? ShardOp::kPlace : ShardOp::kTake,
               local,
               product(sizes, 0, position),
               sizes[position],
               product(sizes, position + 1, sizes.size()),
               cut.part,
               type);
}

std::vector<Size> Emitter::lengths_of(int part, const Size& full) {
  std::vector<Size> lengths;
  for (int device = 0; device < devices_; ++device)
    lengths.push_back(symbols.length_of(part, full, device));
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

ValueId Emitter::shard(ShardOp op,
                       ValueId local,
                       const Size& before,
                       const Size& full,
                       const Size& after,
                       int part,
                       const TensorType& type) {
  std::vector<Argument> arguments{ValueArgument{local},
                                  before,
                                  full,
                                  after,
                                  symbols.offset(part, full),
                                  symbols.length(part, full),
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
  const OpId producer = graph_.values[static_cast<size_t>(value)].producer;
  return completed_.prepared.names[static_cast<size_t>(producer)];
}

void Emitter::post(int communication) {
  items[phase_].push_back({Item::Kind::kPost, communication, last_only_});
}

Emitter::Started Emitter::exchange(Communication communication,
                                   ValueId input,
                                   const TensorType& received,
                                   const AxisState& from) {
  const int id = static_cast<int>(stage.communications.size());
  communication.inputs = {input};
  const bool step = phase_ == Phase::kUpdate || last_only_;
  communication.outputs = {
      add_local_value(received, step ? Lifetime::kStep : Lifetime::kMicrobatch)};
  stage.communications.push_back(communication);
  post(id);
  return {id, communication.outputs[0], from};
}

Emitter::Started Emitter::begin(ValueId value,
                                ValueId local,
                                const AxisState& from,
                                const AxisState& to) {
  if (to.holding == Holding::kReplicated) {
    if (from.holding == Holding::kSharded) return gather(value, local, from);
    return all_reduce(
        value, local, from.holding == Holding::kPartialMax ? Reduce::kMax : Reduce::kSum);
  }
  return from.holding == Holding::kPartialSum ? reduce_scatter(value, local, to)
                                              : all_to_all(value, local, from, to);
}

Emitter::Started Emitter::all_reduce(ValueId value, ValueId local, Reduce reduce) {
  Communication communication{
      CommunicationKind::kAllReduce, reduce, 0, {}, {}, {}, {}, "all_reduce " + label(value)};
  return exchange(std::move(communication), local, local_type(value, replicated()), partial_sum());
}

Emitter::Started Emitter::gather(ValueId value, ValueId local, const AxisState& from) {
  std::vector<Size> sizes = local_factors(value, replicated());
  const auto position = static_cast<size_t>(from.position);
  const Size full = sizes[position];
  const Size rest = product(sizes, 0, position) * product(sizes, position + 1, sizes.size());
  Communication communication{
      CommunicationKind::kAllGather, Reduce::kSum, 0, {}, {}, {}, {}, "all_gather " + label(value)};
  for (const Size& length : lengths_of(from.part, full))
    communication.receive.push_back(length * rest);
  return exchange(std::move(communication),
                  local,
                  {graph_.values[static_cast<size_t>(value)].type.dtype, {full * rest}},
                  from);
}

Emitter::Started Emitter::reduce_scatter(ValueId value, ValueId local, const AxisState& to) {
  const std::vector<Size> sizes = local_factors(value, replicated());
  const auto position = static_cast<size_t>(to.position);
  const Size& full = sizes[position];
  const Size before = product(sizes, 0, position),
             after = product(sizes, position + 1, sizes.size());
  const DType dtype = graph_.values[static_cast<size_t>(value)].type.dtype;
  const std::vector<Size> lengths = lengths_of(to.part, full);
  const ValueId packed = pack(local, before, lengths, after, {dtype, {before * full * after}});
  Communication communication{CommunicationKind::kReduceScatter,
                              Reduce::kSum,
                              0,
                              {},
                              {},
                              {},
                              {},
                              "reduce_scatter " + label(value)};
  for (const Size& length : lengths) communication.send.push_back(before * length * after);
  return exchange(std::move(communication),
                  packed,
                  {dtype, {before * symbols.length(to.part, full) * after}},
                  partial_sum());
}

Emitter::Started Emitter::all_to_all(ValueId value,
                                     ValueId local,
                                     const AxisState& from,
                                     const AxisState& to) {
  const std::vector<Size> whole = local_factors(value, replicated());
  const auto cut = static_cast<size_t>(to.position);
  std::vector<Size> have = local_factors(value, from), want = local_factors(value, to);
  const Size have_rest = product(have, 0, cut) * product(have, cut + 1, have.size());
  const auto old_cut = static_cast<size_t>(from.position);
  const Size want_rest = product(want, 0, old_cut) * product(want, old_cut + 1, want.size());
  std::vector<Size> sent, received;
  for (int device = 0; device < devices_; ++device) {
    const bool same = cut == old_cut;
    const Size& full = whole[cut];
    sent.push_back(same ? symbols.sent({from.part, full}, {to.part, full}, full, device)
                        : symbols.length_of(to.part, whole[cut], device));
    received.push_back(same ? symbols.received({from.part, full}, {to.part, full}, full, device)
                            : symbols.length_of(from.part, whole[old_cut], device));
  }
  const DType dtype = graph_.values[static_cast<size_t>(value)].type.dtype;
  const ValueId packed = pack(local,
                              product(have, 0, cut),
                              sent,
                              product(have, cut + 1, have.size()),
                              {dtype, {product(have, 0, have.size())}});
  Communication communication{
      CommunicationKind::kAllToAll, Reduce::kSum, 0, {}, {}, {}, {}, "all_to_all " + label(value)};
  for (const Size& length : sent) communication.send.push_back(length * have_rest);
  for (const Size& length : received) communication.receive.push_back(length * want_rest);
  return exchange(std::move(communication), packed, {dtype, {product(want, 0, want.size())}}, from);
}

// A bucket is awaited once.
void Emitter::wait(int communication) {
  std::vector<Item>& order = items[phase_];
  const bool waited = std::any_of(order.begin(), order.end(), [&](const Item& item) {
    return item.kind == Item::Kind::kWait && item.index == communication;
  });
  if (!waited) order.push_back({Item::Kind::kWait, communication, last_only_});
}

ValueId Emitter::finish(ValueId value, const Started& started, const AxisState& to) {
  wait(started.communication);
  const Communication& communication =
      stage.communications[static_cast<size_t>(started.communication)];
  if (communication.kind == CommunicationKind::kAllReduce) return started.received;
  const TensorType type = local_type(value, to);
  if (communication.kind == CommunicationKind::kReduceScatter)
    return add_local_op(
        local_op("aten.view.default", {ValueArgument{started.received}, type.shape}), {type})[0];
  const std::vector<Size> sizes = local_factors(value, to);
  const auto position = static_cast<size_t>(started.from.position);
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
  return unpack(started.received, before, lengths, after, type);
}

void Emitter::start(ValueId value, const AxisState& state) {
  if (devices_ == 1 || find(value, state)) return;
  const AxisState from = own_state(value);
  const ValueId local = *find(value, from);
  if (from.holding != Holding::kPartialSum || state.holding != Holding::kReplicated) {
    if (from.holding != Holding::kReplicated)
      started_[{value, state}] = begin(value, local, from, state);
    return;
  }
  const TensorType& type = graph_.values[static_cast<size_t>(value)].type;
  if (bucket_) {
    const ValueId first = stage.communications[static_cast<size_t>(*bucket_)].inputs[0];
    if (stage.graph.values[static_cast<size_t>(first)].type.dtype != type.dtype) flush_bucket();
  }
  if (!bucket_) {
    bucket_ = static_cast<int>(stage.communications.size());
    bucket_bytes_ = 0;
    stage.communications.push_back({CommunicationKind::kAllReduce,
                                    Reduce::kSum,
                                    0,
                                    {},
                                    {},
                                    {},
                                    {},
                                    "all_reduce gradients from " + label(value)});
  }
  Communication& bucket = stage.communications[static_cast<size_t>(*bucket_)];
  bucket.inputs.push_back(local);
  bucket.outputs.push_back(add_local_value(local_type(value, state), Lifetime::kStep));
  started_[{value, state}] = {*bucket_, bucket.outputs.back(), from};
  bucket_bytes_ += static_cast<double>(num_bytes(type, {1}));
  if (bucket_bytes_ >= static_cast<double>(options_.bucket_bytes)) flush_bucket();
}

void Emitter::flush_bucket() {
  if (!bucket_) return;
  post(*bucket_);
  bucket_.reset();
}

}  // namespace medley
