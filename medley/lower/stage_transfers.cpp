#include "medley/lower/stage_transfers.h"

#include "medley/graph/replace_bf16.h"

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

Size elements(const TensorType& type) { return product(type.shape, 0, type.shape.size()); }

// Returns the elements of the cut dim for each device of the other end. `own` and `other` are the
// two ends, `part` the other's part among this stage's symbols.
std::vector<Size> lengths(SymbolTable& symbols,
                          const TransferEnd& own,
                          const TransferEnd& other,
                          int part,
                          const Size& whole,
                          bool sends) {
  std::vector<Size> result;
  const int own_part =
      own.placement.size() == 1 ? own.placement[0].part : symbols.elsewhere(own.division);
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

// Treats a tensor of one element as a dim.
Piece piece_of_one(SymbolTable& symbols, const Placement& placement) {
  const Size one(1);
  return {one, one, one, symbols.offset(placement, 0, one), symbols.length(placement, 0, one)};
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

void StageTransfers::send(ValueId value, const Crossing& crossing) {
  const int part = graph_.symbols.elsewhere(crossing.to.division);
  const TensorType& whole = graph_.whole_type(value);
  Communication communication = communication_of(crossing);
  const size_t senders = crossing.from.devices.size();
  if (crossing.from.dim < 0) {
    const Piece own = piece_of_one(graph_.symbols, crossing.from.placement);
    communication.inputs = {graph_.shard(ShardOp::kTake,
                                         values_.in_placement(value, graph_.whole()),
                                         own,
                                         {whole.dtype, {own.length}})};
    const std::vector<Size> sent =
        lengths(graph_.symbols, crossing.from, crossing.to, part, Size(1), true);
    std::copy(sent.begin(), sent.end(), communication.send.begin() + static_cast<int>(senders));
  } else {
    const ValueId local = values_.in_placement(value, crossing.from.placement);
    // This end's part, cut at the other end's cuts.
    const TensorType type = graph_.local_type(value, crossing.from.placement);
    const Around have = around(type, crossing.to.dim);
    const std::vector<Size> sent = lengths(
        graph_.symbols, crossing.from, crossing.to, part, whole.shape[at(crossing.to.dim)], true);
    communication.inputs = {
        graph_.pack(local, have.before, sent, have.after, {type.dtype, {elements(type)}})};
    for (size_t i = 0; i < sent.size(); ++i)
      communication.send[senders + i] = sent[i] * have.before * have.after;
  }
  communication.inputs[0] = graph_.on_wire(communication.inputs[0], crossing.wire);
  graph_.post(graph_.add(std::move(communication)));
}

void StageTransfers::receive(ValueId value, const Crossing& crossing) {
  const int part = graph_.symbols.elsewhere(crossing.from.division);
  const TensorType& whole = graph_.whole_type(value);
  Communication communication = communication_of(crossing);
  std::vector<Size> received;
  TensorType flat{whole.dtype, {}};
  Size rest(1);
  if (crossing.to.dim < 0) {
    received = lengths(graph_.symbols, crossing.to, crossing.from, part, Size(1), false);
    flat.shape = {piece_of_one(graph_.symbols, crossing.to.placement).length};
  } else {
    const TensorType type = graph_.local_type(value, crossing.to.placement);
    const Around have = around(type, crossing.from.dim);
    received = lengths(graph_.symbols,
                       crossing.to,
                       crossing.from,
                       part,
                       whole.shape[at(crossing.from.dim)],
                       false);
    rest = have.before * have.after;
    flat.shape = {elements(type)};
  }
  for (size_t i = 0; i < received.size(); ++i) communication.receive[i] = received[i] * rest;
  communication.outputs = {
      graph_.add_value(replace_bf16(flat, crossing.wire), Lifetime::kMicrobatch)};
  receiving_[value] = {graph_.add(std::move(communication)), crossing, std::move(received)};
  values_.expect(value);
  values_.finish_first(value, [this, value] { finish(value); });
}

void StageTransfers::receive_new_values() {
  graph_.enter(Phase::kForward, false);
  for (const Output& output : graph_.source.outputs)
    if (const auto awaited = receiving_.find(output.value); output.kind == OutputKind::kBuffer &&
                                                            awaited != receiving_.end() &&
                                                            !awaited->second.crossing.once)
      values_.in_placement(output.value, values_.own_placement(output.value));
}

void StageTransfers::finish(ValueId value) {
  const auto awaited = receiving_.extract(value);
  const auto& [communication, crossing, received] = awaited.mapped();
  graph_.wait(communication);
  const ValueId flat = graph_.cast(graph_.stage.communications[at(communication)].outputs[0],
                                   graph_.whole_type(value).dtype);
  const Placement wanted = values_.own_placement(value);
  const Placement arrived = crossing.to.dim < 0 ? Placement(graph_.stage.mesh.size(), partial_sum())
                                                : crossing.to.placement;
  ValueId local;
  if (crossing.to.dim < 0) {
    local = graph_.shard(ShardOp::kPlace,
                         flat,
                         piece_of_one(graph_.symbols, crossing.to.placement),
                         graph_.local_type(value, graph_.whole()));
  } else {
    const TensorType type = graph_.local_type(value, arrived);
    const Around have = around(type, crossing.from.dim);
    local = graph_.unpack(flat, have.before, received, have.after, type);
  }
  const Placement from = values_.on_axes_that_matter(arrived, wanted);
  values_.define(value, from, local);
  values_.define(value, wanted, values_.convert(value, from, wanted));
}

}  // namespace medley
