// What goes from stage to stage (crossing.h).

#include "medley/base/error.h"
#include "medley/program/emitter.h"

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
    size = size * type.shape[static_cast<size_t>(i)];
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
                          const CrossingEnd& own,
                          const CrossingEnd& other,
                          int part,
                          const Size& whole,
                          bool sends) {
  std::vector<Size> result;
  const SymbolTable::Cut here{own.state.part, own.full}, there{part, other.full};
  for (int device = 0; device < other.division.devices; ++device) {
    if (own.dim == other.dim)
      result.push_back(sends ? symbols.sent(here, there, whole, device)
                             : symbols.received(there, here, whole, device));
    else
      result.push_back(symbols.length_of(part, other.full, device) *
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
  const TensorType& whole = graph_.values[static_cast<size_t>(value)].type;
  Communication communication = communication_of(crossing);
  const size_t senders = crossing.from.devices.size();
  if (crossing.from.dim < 0) {
    const int own = crossing.from.state.part;
    communication.inputs = {shard(ShardOp::kTake,
                                  in_state(value, replicated()),
                                  Size(1),
                                  Size(1),
                                  Size(1),
                                  own,
                                  {whole.dtype, {symbols.length(own, Size(1))}})};
    const std::vector<Size> sent =
        lengths(symbols, crossing.from, crossing.to, part, Size(1), true);
    std::copy(sent.begin(), sent.end(), communication.send.begin() + static_cast<int>(senders));
  } else {
    const ValueId local = in_state(value, crossing.from.state);
    // What this end has, cut where the other end cuts.
    const TensorType type = local_type(value, crossing.from.state);
    const Around have = around(type, crossing.to.dim);
    const std::vector<Size> sent = lengths(symbols,
                                           crossing.from,
                                           crossing.to,
                                           part,
                                           whole.shape[static_cast<size_t>(crossing.to.dim)],
                                           true);
    communication.inputs = {
        pack(local, have.before, sent, have.after, {type.dtype, {elements(type)}})};
    for (size_t i = 0; i < sent.size(); ++i)
      communication.send[senders + i] = sent[i] * have.before * have.after;
  }
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(std::move(communication));
  post(id);
}

void Emitter::receive(ValueId value, const Crossing& crossing) {
  const int part = symbols.elsewhere(crossing.from.division);
  const TensorType& whole = graph_.values[static_cast<size_t>(value)].type;
  Communication communication = communication_of(crossing);
  std::vector<Size> received;
  TensorType flat{whole.dtype, {}};
  Size rest(1);
  if (crossing.to.dim < 0) {
    received = lengths(symbols, crossing.to, crossing.from, part, Size(1), false);
    flat.shape = {symbols.length(crossing.to.state.part, Size(1))};
  } else {
    const TensorType type = local_type(value, crossing.to.state);
    const Around have = around(type, crossing.from.dim);
    received = lengths(symbols,
                       crossing.to,
                       crossing.from,
                       part,
                       whole.shape[static_cast<size_t>(crossing.from.dim)],
                       false);
    rest = have.before * have.after;
    flat.shape = {elements(type)};
  }
  for (size_t i = 0; i < received.size(); ++i) communication.receive[i] = received[i] * rest;
  communication.outputs = {add_local_value(flat, Lifetime::kMicrobatch)};
  received_.insert(value);
  receiving_[value] = {
      static_cast<int>(stage.communications.size()), crossing, std::move(received)};
  stage.communications.push_back(std::move(communication));
}

ValueId Emitter::finish_receiving(ValueId value, const Awaited& awaited) {
  const auto& [communication, crossing, received] = awaited;
  wait(communication);
  const ValueId flat = stage.communications[static_cast<size_t>(communication)].outputs[0];
  const AxisState arrived = crossing.to.dim < 0 ? partial_sum() : crossing.to.state;
  ValueId local;
  if (crossing.to.dim < 0) {
    const DType dtype = graph_.values[static_cast<size_t>(value)].type.dtype;
    local = shard(
        ShardOp::kPlace, flat, Size(1), Size(1), Size(1), crossing.to.state.part, {dtype, {}});
  } else {
    const TensorType type = local_type(value, arrived);
    const Around have = around(type, crossing.from.dim);
    local = unpack(flat, have.before, received, have.after, type);
  }
  const AxisState& wanted = own_state(value);
  if (devices_ == 1 || arrived == wanted) return local;
  return finish(value, begin(value, local, arrived, wanted), wanted);
}

void Emitter::sum_over_stages(ValueId value, const std::vector<int>& devices) {
  const DType dtype = graph_.values[static_cast<size_t>(value)].type.dtype;
  const ValueId sum = sum_over_stages(in_state(value, replicated()), dtype, label(value), devices);
  for (const AxisState& state : {own_state(value), replicated()}) held_[{value, state}].clear();
  define(value, devices_ == 1 ? own_state(value) : replicated(), sum, phase_);
}

ValueId Emitter::sum_over_stages(std::optional<ValueId> local,
                                 DType dtype,
                                 const std::string& what,
                                 const std::vector<int>& devices) {
  const TensorType type{dtype, {}};
  // Every stage adds once, whatever the number of its devices.
  Op own =
      local
          ? local_op("medley.keep_first.default", {ValueArgument{*local}, SymbolTable::me()})
          : local_op(
                "aten.full.default",
                {std::vector<Size>{}, 0.0, dtype, NoneArgument{}, NoneArgument{}, NoneArgument{}});
  Communication communication;
  communication.kind = CommunicationKind::kAllReduce;
  communication.name = "all_reduce " + what + " over stages";
  communication.devices = devices;
  communication.inputs = {add_local_op(std::move(own), {type})[0]};
  const ValueId sum = add_local_value(type, Lifetime::kStep);
  communication.outputs = {sum};
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(std::move(communication));
  post(id);
  wait(id);
  return sum;
}

}  // namespace medley
