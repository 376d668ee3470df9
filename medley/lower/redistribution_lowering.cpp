#include "medley/lower/redistribution_lowering.h"

#include <fmt/format.h>

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/program/calls.h"

namespace medley {
namespace {

std::vector<Size> lengths_of(LocalGraph& graph, int axis, int part, const Size& full) {
  std::vector<Size> lengths;
  for (int device = 0; device < graph.stage.mesh[at(axis)]; ++device)
    lengths.push_back(graph.symbols.length_of(axis, part, full, device));
  return lengths;
}

Communication communication_for(CommunicationKind kind,
                                const AxisRedistribution& step,
                                std::string what) {
  Communication communication;
  communication.kind = kind;
  communication.axis = step.axis;
  if (step.old_placement().holding == Holding::kPartialMax) communication.reduce = Reduce::kMax;
  communication.name = to_string(kind) + " " + std::move(what);
  return communication;
}

}  // namespace

Placement AxisRedistribution::gathered() const {
  Placement placement = to;
  for (size_t i = 0; i < placement.size(); ++i)
    if (axis < 0 || axis == static_cast<int>(i)) placement[i] = replicated();
  return placement;
}

bool AxisRedistribution::is_local() const {
  return old_placement().holding == Holding::kReplicated ||
         (new_placement().holding == Holding::kPartialSum &&
          old_placement().holding == Holding::kSharded);
}

ValueId RedistributionLowering::convert_locally(ValueId value,
                                                ValueId local,
                                                const AxisRedistribution& step) {
  const AxisPlacement &from = step.old_placement(), &to = step.new_placement();
  const TensorType type = graph_.local_type(value, step.to);
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialMax) return local;
  if (from.holding == Holding::kReplicated && to.holding == Holding::kPartialSum)
    return graph_.keep_first(local, step.axis, type);
  const AxisPlacement& cut = from.holding == Holding::kSharded ? from : to;
  MEDLEY_CHECK(cut.holding == Holding::kSharded);
  const std::vector<Size> sizes = graph_.local_factors(value, step.gathered());
  const auto position = at(cut.position);
  // Within the remainder of the other axis.
  Placement alone = graph_.whole();
  alone[at(step.axis)] = cut;
  return graph_.shard(from.holding == Holding::kSharded ? ShardOp::kPlace : ShardOp::kTake,
                      local,
                      {product(sizes, 0, position),
                       sizes[position],
                       product(sizes, position + 1, sizes.size()),
                       graph_.symbols.offset(alone, cut.position, sizes[position]),
                       graph_.symbols.length(alone, cut.position, sizes[position])},
                      type);
}

RedistributionLowering::Started RedistributionLowering::exchange(Communication communication,
                                                                 ValueId input,
                                                                 const TensorType& received,
                                                                 const AxisPlacement& from) {
  communication.inputs = {graph_.on_wire(input, graph_.wire())};
  const ValueId output = graph_.add_value(replace_bf16(received, graph_.wire()), graph_.lifetime());
  communication.outputs = {output};
  const int id = graph_.add(std::move(communication));
  graph_.post(id);
  return {id, output, from};
}

RedistributionLowering::Started RedistributionLowering::begin(ValueId value,
                                                              ValueId local,
                                                              const AxisRedistribution& step) {
  const Holding from = step.old_placement().holding;
  if (step.new_placement().holding == Holding::kReplicated)
    return from == Holding::kSharded ? gather(value, local, step) : all_reduce(value, local, step);
  return from == Holding::kPartialSum ? reduce_scatter(value, local, step)
                                      : all_to_all(value, local, step);
}

RedistributionLowering::Started RedistributionLowering::all_reduce(ValueId value,
                                                                   ValueId local,
                                                                   const AxisRedistribution& step) {
  return exchange(communication_for(CommunicationKind::kAllReduce, step, graph_.label(value)),
                  local,
                  graph_.local_type(value, step.to),
                  partial_sum());
}

RedistributionLowering::Started RedistributionLowering::gather(ValueId value,
                                                               ValueId local,
                                                               const AxisRedistribution& step) {
  const AxisPlacement& from = step.old_placement();
  std::vector<Size> sizes = graph_.local_factors(value, step.to);
  const auto position = at(from.position);
  const Size full = sizes[position];
  const Size rest = product(sizes, 0, position) * product(sizes, position + 1, sizes.size());
  Communication communication =
      communication_for(CommunicationKind::kAllGather, step, graph_.label(value));
  for (const Size& length : lengths_of(graph_, step.axis, from.part, full))
    communication.receive.push_back(length * rest);
  return exchange(
      std::move(communication), local, {graph_.whole_type(value).dtype, {full * rest}}, from);
}

RedistributionLowering::Started RedistributionLowering::reduce_scatter(
    ValueId value, ValueId local, const AxisRedistribution& step) {
  const AxisPlacement& to = step.new_placement();
  const std::vector<Size> sizes = graph_.local_factors(value, step.gathered());
  const auto position = at(to.position);
  const Size& full = sizes[position];
  const Size before = product(sizes, 0, position),
             after = product(sizes, position + 1, sizes.size());
  const DType dtype = graph_.whole_type(value).dtype;
  const std::vector<Size> lengths = lengths_of(graph_, step.axis, to.part, full);
  const ValueId packed =
      graph_.pack(local, before, lengths, after, {dtype, {before * full * after}});
  Communication communication =
      communication_for(CommunicationKind::kReduceScatter, step, graph_.label(value));
  for (const Size& length : lengths) communication.send.push_back(before * length * after);
  return exchange(std::move(communication),
                  packed,
                  {dtype, {before * graph_.local_factors(value, step.to)[position] * after}},
                  partial_sum());
}

RedistributionLowering::Started RedistributionLowering::all_to_all(ValueId value,
                                                                   ValueId local,
                                                                   const AxisRedistribution& step) {
  const AxisPlacement &from = step.old_placement(), &to = step.new_placement();
  const std::vector<Size> whole = graph_.local_factors(value, step.gathered());
  const auto cut = at(to.position);
  std::vector<Size> have = graph_.local_factors(value, step.from),
                    want = graph_.local_factors(value, step.to);
  const Size have_rest = product(have, 0, cut) * product(have, cut + 1, have.size());
  const auto old_cut = at(from.position);
  const Size want_rest = product(want, 0, old_cut) * product(want, old_cut + 1, want.size());
  std::vector<Size> sent, received;
  const int axis = step.axis;
  for (int device = 0; device < graph_.stage.mesh[at(axis)]; ++device) {
    const bool same = cut == old_cut;
    const Size& full = whole[cut];
    sent.push_back(same
                       ? graph_.symbols.sent(axis, {from.part, full}, {to.part, full}, full, device)
                       : graph_.symbols.length_of(axis, to.part, whole[cut], device));
    received.push_back(
        same ? graph_.symbols.received(axis, {from.part, full}, {to.part, full}, full, device)
             : graph_.symbols.length_of(axis, from.part, whole[old_cut], device));
  }
  const DType dtype = graph_.whole_type(value).dtype;
  const ValueId packed = graph_.pack(local,
                                     product(have, 0, cut),
                                     sent,
                                     product(have, cut + 1, have.size()),
                                     {dtype, {product(have, 0, have.size())}});
  Communication communication =
      communication_for(CommunicationKind::kAllToAll, step, graph_.label(value));
  for (const Size& length : sent) communication.send.push_back(length * have_rest);
  for (const Size& length : received) communication.receive.push_back(length * want_rest);
  return exchange(std::move(communication), packed, {dtype, {product(want, 0, want.size())}}, from);
}

ValueId RedistributionLowering::finish(ValueId value, const Started& started, const Placement& to) {
  graph_.wait(started.communication);
  const Communication& communication = graph_.stage.communications[at(started.communication)];
  const TensorType type = graph_.local_type(value, to);
  const ValueId arrived = graph_.cast(started.received, type.dtype);
  if (communication.kind == CommunicationKind::kAllReduce) return arrived;
  if (communication.kind == CommunicationKind::kReduceScatter) return graph_.view(arrived, type);
  const std::vector<Size> sizes = graph_.local_factors(value, to);
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
                              graph_.source.name,
                              graph_.label(value)));
    lengths.push_back(*length);
  }
  return graph_.unpack(arrived, before, lengths, after, type);
}

RedistributionLowering::Started RedistributionLowering::all_reduce_in_bucket(
    ValueId value, ValueId local, const AxisRedistribution& step) {
  const TensorType type = replace_bf16(graph_.local_type(value, step.to), graph_.wire());
  const auto post_bucket = [&] {
    graph_.post(buckets_.at(step.axis).communication);
    buckets_.erase(step.axis);
  };
  if (const auto open = buckets_.find(step.axis); open != buckets_.end()) {
    const ValueId other = graph_.stage.communications[at(open->second.communication)].inputs[0];
    if (type_of(graph_.stage.graph, other).dtype != type.dtype) post_bucket();
  }
  if (!buckets_.contains(step.axis)) {
    Communication first =
        communication_for(CommunicationKind::kAllReduce, step, graph_.label(value));
    first.name = "all_reduce gradients from " + graph_.label(value);
    buckets_[step.axis].communication = graph_.add(std::move(first));
  }
  const ValueId sent = graph_.on_wire(local, graph_.wire());
  Bucket& bucket = buckets_.at(step.axis);
  const int id = bucket.communication;
  Communication& communication = graph_.stage.communications[at(id)];
  communication.inputs.push_back(sent);
  communication.outputs.push_back(graph_.add_value(type, Lifetime::kStep));
  const Started started{id, communication.outputs.back(), step.old_placement()};
  double bytes = static_cast<double>(num_bytes(graph_.whole_type(value), {1}));
  for (size_t axis = 0; axis < graph_.stage.mesh.size(); ++axis)
    if (step.to[axis].holding == Holding::kSharded)
      bytes /= static_cast<double>(graph_.stage.mesh[axis]);
  bucket.bytes += bytes;
  if (bucket.bytes >= bucket_bytes_) post_bucket();
  return started;
}

void RedistributionLowering::flush_buckets() {
  for (const auto& [axis, bucket] : buckets_) graph_.post(bucket.communication);
  buckets_.clear();
}

}  // namespace medley
