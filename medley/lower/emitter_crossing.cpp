// What goes from stage to stage (crossing.h).

#include "medley/base/at.h"
#include "medley/graph/replace_bf16.h"
#include "medley/lower/emitter.h"

namespace medley {
namespace {

// The sizes before, of and after a dim of a tensor.
struct Around {
  Size before{1}, dim{1}, after{1};
};

Around around(const TensorType& type, int dim) {
  Around sizes;
  for (int i = 0; i < static_cast<int>(type.shape.size()); ++i) {
    Size& size = i < dim ? sizes.before : i == dim ? sizes.dim : sizes.after;
    size = size * type.shape[at(i)];
  }
  return sizes;
}

Size elements(const TensorType& type) {
  Size all(1);
  for (const Size& size : type.shape) all = all * size;
  return all;
}

// Elements of the cut dim that go to or come from each device of the other end. `own` and `other`
// are this end and the other one, `part` the other's part among the symbols of this stage.
std::vector<Size> lengths(SymbolTable& symbols,
                          const TransferEnd& own,
                          const TransferEnd& other,
                          int part,
                          const Size& whole,
                          bool sends) {
  std::vector<Size> result;
  const int own_part = own.state.size() == 1 ? own.state[0].part : symbols.elsewhere(own.division);
  const SymbolTable::Cut here{own_part, own.full}, there{part, other.full};
  for (int device = 0; device < other.division.count(); ++device) {
    if (own.dim == other.dim)
      result.push_back(sends ? symbols.sent(0, here, there, whole, device)
                             : symbols.received(0, there, here, whole, device));
    else
      result.push_back(symbols.length_of(0, part, other.full, device) *
                       divide(whole, other.full).value());
  }
  return result;
}

Communication communication_of(const Crossing& crossing) {
  Communication communication;
  communication.kind = CommunicationKind::kTransfer;
  communication.name = "transfer " + crossing.name;
  communication.devices = crossing.from.devices;
  communication.devices.insert(
      communication.devices.end(), crossing.to.devices.begin(), crossing.to.devices.end());
  communication.lane = crossing.lane;
  communication.depth = crossing.depth;
  communication.send.resize(communication.devices.size(), Size(0));
  communication.receive = communication.send;
  return communication;
}

}  // namespace

void Emitter::send(ValueId value, const Crossing& crossing) {
  const int part = symbols.elsewhere(crossing.to.division);
  const TensorType& whole = graph_.values[at(value)].type;
  Communication communication = communication_of(crossing);
  const size_t senders = crossing.from.devices.size();
  if (crossing.from.dim < 0) {
    const Piece own = piece_of_one(crossing.from.state);
    communication.inputs = {
        shard(ShardOp::kTake, in_state(value, this->whole()), own, {whole.dtype, {own.length}})};
    const std::vector<Size> sent =
        lengths(symbols, crossing.from, crossing.to, part, Size(1), true);
    std::copy(sent.begin(), sent.end(), communication.send.begin() + static_cast<int>(senders));
  } else {
    const ValueId local = in_state(value, crossing.from.state);
    // What this end has, cut where the other end cuts.
    const TensorType type = local_type(value, crossing.from.state);
    const Around have = around(type, crossing.to.dim);
    const std::vector<Size> sent =
        lengths(symbols, crossing.from, crossing.to, part, whole.shape[at(crossing.to.dim)], true);
    communication.inputs = {
        pack(local, have.before, sent, have.after, {type.dtype, {elements(type)}})};
    for (size_t i = 0; i < sent.size(); ++i)
      communication.send[senders + i] = sent[i] * have.before * have.after;
  }
  communication.inputs[0] = on_wire(communication.inputs[0], crossing.wire);
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(std::move(communication));
  post(id);
}

void Emitter::receive(ValueId value, const Crossing& crossing) {
  const int part = symbols.elsewhere(crossing.from.division);
  const TensorType& whole = graph_.values[at(value)].type;
  Communication communication = communication_of(crossing);
  std::vector<Size> received;
  TensorType flat{whole.dtype, {}};
  Size rest(1);
  if (crossing.to.dim < 0) {
    received = lengths(symbols, crossing.to, crossing.from, part, Size(1), false);
    flat.shape = {piece_of_one(crossing.to.state).length};
  } else {
    const TensorType type = local_type(value, crossing.to.state);
    const Around have = around(type, crossing.from.dim);
    received = lengths(
        symbols, crossing.to, crossing.from, part, whole.shape[at(crossing.from.dim)], false);
    rest = have.before * have.after;
    flat.shape = {elements(type)};
  }
  for (size_t i = 0; i < received.size(); ++i) communication.receive[i] = received[i] * rest;
  communication.outputs = {
      add_local_value(replace_bf16(flat, crossing.wire), Lifetime::kMicrobatch)};
  received_.insert(value);
  receiving_[value] = {
      static_cast<int>(stage.communications.size()), crossing, std::move(received)};
  stage.communications.push_back(std::move(communication));
}

void Emitter::receive_new_values() {
  enter(Phase::kForward, false);
  for (const Output& output : graph_.outputs)
    if (const auto awaited = receiving_.find(output.value); output.kind == OutputKind::kBuffer &&
                                                            awaited != receiving_.end() &&
                                                            !awaited->second.crossing.once)
      in_state(output.value, own_state(output.value));
}

ValueId Emitter::finish_receiving(ValueId value, const Awaited& awaited) {
  const auto& [communication, crossing, received] = awaited;
  wait(communication);
  const ValueId flat =
      cast(stage.communications[at(communication)].outputs[0], graph_.values[at(value)].type.dtype);
  const State wanted = own_state(value);
  const State arrived =
      crossing.to.dim < 0 ? State(mesh_.size(), partial_sum()) : crossing.to.state;
  ValueId local;
  if (crossing.to.dim < 0) {
    local =
        shard(ShardOp::kPlace, flat, piece_of_one(crossing.to.state), local_type(value, whole()));
  } else {
    const TensorType type = local_type(value, arrived);
    const Around have = around(type, crossing.from.dim);
    local = unpack(flat, have.before, received, have.after, type);
  }
  const State from = on_axes_that_matter(arrived, wanted);
  define(value, from, local, phase_);
  return convert(value, from, wanted);
}

// A tensor of one element, as if it were a dim.
Emitter::Piece Emitter::piece_of_one(const State& state) {
  return {Size(1),
          Size(1),
          Size(1),
          symbols.offset(state, 0, Size(1)),
          symbols.length(state, 0, Size(1))};
}

void Emitter::sum_over_stages(ValueId value,
                              const std::string& what,
                              const std::vector<int>& devices,
                              bool counts) {
  const TensorType type = local_type(value, whole());
  const ValueId own = in_state(value, whole());
  const ValueId sum =
      sum_over_stages(counts ? std::optional(own) : std::nullopt, type, what, devices);
  for (auto& [key, all] : held_)
    if (key.first == value) all.clear();
  define(value, on_axes_that_matter(whole(), own_state(value)), sum, phase_);
}

ValueId Emitter::sum_over_stages(std::optional<ValueId> local,
                                 const TensorType& type,
                                 const std::string& what,
                                 const std::vector<int>& devices) {
  // Every stage adds once, whatever the number of its devices.
  ValueId own = kNone;
  if (local) {
    own = cast(*local, type.dtype);
    for (int axis = 0; axis < static_cast<int>(mesh_.size()); ++axis)
      own = add_local_op(
          local_op("medley.keep_first.default", {ValueArgument{own}, symbols.me(axis)}), {type})[0];
  } else {
    own = add_local_op(
        local_op("aten.full.default",
                 {type.shape, 0.0, type.dtype, NoneArgument{}, NoneArgument{}, NoneArgument{}}),
        {type})[0];
  }
  return all_reduce_over(own, what + " over stages", devices);
}

ValueId Emitter::all_reduce_over(ValueId own,
                                 const std::string& what,
                                 const std::vector<int>& devices) {
  Communication communication;
  communication.kind = CommunicationKind::kAllReduce;
  communication.name = "all_reduce " + what;
  communication.devices = devices;
  communication.inputs = {own};
  const ValueId sum = add_local_value(stage.graph.values[at(own)].type, Lifetime::kStep);
  communication.outputs = {sum};
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(std::move(communication));
  post(id);
  wait(id);
  return sum;
}

}  // namespace medley
