#include "medley/lower/gradient_sync_lowering.h"

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"

namespace medley {

bool GradientSyncLowering::OpenSync::is_done() const {
  for (size_t t = 0; t < given.size(); ++t)
    if (given[t] == kNone && sync->tensors[t].gives) return false;
  return true;
}

GradientSyncLowering::GradientSyncLowering(LocalGraph& graph,
                                           LocalValues& values,
                                           RedistributionLowering& redistribution,
                                           const Connections& connections)
    : graph_(graph),
      values_(values),
      redistribution_(redistribution),
      shares_(connections.shares),
      wire_(connections.wire) {
  for (const StageSync& sync : connections.gradients)
    open_syncs_.push_back({&sync, std::vector<ValueId>(sync.tensors.size(), kNone)});
  for (const StageSync& sync : connections.values)
    spreading_.push_back({&sync, std::vector<ValueId>(sync.tensors.size(), kNone)});
  for (const Input& input : graph.source.inputs)
    if (input.kind == InputKind::kParameter) parameters_[input.name] = input.value;
}

bool GradientSyncLowering::sync(const std::string& parameter, ValueId value) {
  for (OpenSync& open : open_syncs_)
    for (size_t t = 0; t < open.given.size(); ++t) {
      const StageSync::Tensor& tensor = open.sync->tensors[t];
      if (tensor.parameter != parameter) continue;
      open.given[t] = value;
      if (!tensor.gives) {
        values_.expect(value);
        return true;
      }
      values_.start(value, tensor.gives->placement);
      post_syncs(false);
      return true;
    }
  return false;
}

void GradientSyncLowering::finish() {
  for (int communication : posted_syncs_) graph_.wait(communication);
}

// Returns whether a gradient of the gradient sync is still being reduced within the mesh.
bool GradientSyncLowering::waits_in_mesh(const OpenSync& open) const {
  for (size_t t = 0; t < open.given.size(); ++t) {
    const StageSync::Tensor& tensor = open.sync->tensors[t];
    if (!tensor.gives) continue;
    const Placement& own = values_.own_placement(open.given[t]);
    for (const AxisRedistribution& step :
         values_.redistributions(own, values_.on_axes_that_matter(tensor.gives->placement, own)))
      if (!step.is_local()) return true;
  }
  return false;
}

void GradientSyncLowering::post_syncs(bool all) {
  for (; next_sync_ < open_syncs_.size(); ++next_sync_) {
    const OpenSync& next = open_syncs_[next_sync_];
    if (!next.is_done()) return;
    const bool is_followed =
        next_sync_ + 1 < open_syncs_.size() && open_syncs_[next_sync_ + 1].is_done();
    if (!all && !is_followed && waits_in_mesh(next)) return;
    post_sync(next);
  }
}

int GradientSyncLowering::post_sync(const StageSync& sync, const std::vector<ValueId>& inputs) {
  Communication communication;
  communication.kind = CommunicationKind::kGradientSync;
  communication.name = sync.name;
  communication.devices = sync.devices;
  communication.sync = sync.cells;
  for (ValueId input : inputs) communication.inputs.push_back(graph_.on_wire(input, wire_));
  const int id = graph_.add(std::move(communication));
  graph_.post(id);
  return id;
}

// Returns the type of a stage's part of a value at an end.
TensorType GradientSyncLowering::type_of_end(ValueId value, const StageSync::End& end) {
  MEDLEY_CHECK(!graph_.shares.contains(value));
  if (end.share) graph_.shares[value] = *end.share;
  TensorType type = graph_.local_type(value, end.placement);
  graph_.shares.erase(value);
  return type;
}

GradientSyncLowering::SyncedValue GradientSyncLowering::add_arrival(int communication,
                                                                    ValueId value,
                                                                    const StageSync::End& end) {
  const TensorType type = type_of_end(value, end);
  const ValueId sum = graph_.add_value(
      {replace_bf16(type.dtype, wire_), {product(type.shape, 0, type.shape.size())}},
      Lifetime::kStep);
  graph_.stage.communications[at(communication)].outputs.push_back(sum);
  return {communication, sum, end};
}

void GradientSyncLowering::post_sync(const OpenSync& open) {
  redistribution_.flush_buckets();
  std::vector<ValueId> inputs;
  for (size_t t = 0; t < open.given.size(); ++t)
    if (const auto& gives = open.sync->tensors[t].gives)
      inputs.push_back(values_.in_placement(open.given[t], gives->placement));
  const int id = post_sync(*open.sync, inputs);
  for (size_t t = 0; t < open.given.size(); ++t) {
    const ValueId value = open.given[t];
    if (!open.sync->tensors[t].takes) continue;
    StageSync::End end = *open.sync->tensors[t].takes;
    end.placement = values_.on_axes_that_matter(end.placement, values_.own_placement(value));
    const SyncedValue synced = add_arrival(id, value, end);
    values_.finish_first(value, [this, value, synced] { finish_sync(value, synced); });
  }
  posted_syncs_.push_back(id);
}

// Replaces the value by the sum.
void GradientSyncLowering::finish_sync(ValueId value, const SyncedValue& synced) {
  graph_.wait(synced.communication);
  if (synced.end.share) graph_.shares[value] = *synced.end.share;
  values_.arrive(value, synced.end.placement, unflatten(value, synced));
}

ValueId GradientSyncLowering::unflatten(ValueId value, const SyncedValue& synced) {
  const TensorType type = graph_.local_type(value, synced.end.placement);
  return graph_.view(graph_.cast(synced.flat, type.dtype), type);
}

void GradientSyncLowering::restrict_to_share(const std::string& parameter, ValueId value) {
  if (const auto share = shares_.find(parameter); share != shares_.end())
    graph_.shares[value] = share->second;
}

ValueId GradientSyncLowering::take_share(const std::string& parameter,
                                         ValueId value,
                                         const Placement& placement) {
  const ValueId whole = values_.in_placement(value, placement);
  const auto share = shares_.find(parameter);
  if (share == shares_.end()) return whole;
  const auto& [position, interval] = share->second;
  const std::vector<Size> sizes = graph_.local_factors(value, placement);
  const auto p = at(position);
  const Size& full = graph_.full_size(value, position);
  return graph_.shard(ShardOp::kTake,
                      whole,
                      {product(sizes, 0, p),
                       sizes[p],
                       product(sizes, p + 1, sizes.size()),
                       graph_.symbols.start_within(placement, position, full, interval),
                       graph_.symbols.length_within(placement, position, full, interval)},
                      type_of_end(value, {placement, share->second}));
}

void GradientSyncLowering::send_value(const std::string& parameter, ValueId value) {
  for (OpenSync& spreading : spreading_)
    for (size_t t = 0; t < spreading.given.size(); ++t) {
      const StageSync::Tensor& tensor = spreading.sync->tensors[t];
      if (tensor.parameter == parameter)
        spreading.given[t] = values_.in_placement(value, tensor.gives->placement);
    }
  send_values();
}

void GradientSyncLowering::send_values() {
  for (; next_values_ < spreading_.size() && spreading_[next_values_].is_done(); ++next_values_) {
    const auto& [sync, given] = spreading_[next_values_];
    std::vector<ValueId> inputs;
    for (ValueId value : given)
      if (value != kNone) inputs.push_back(value);
    const int id = post_sync(*sync, inputs);
    for (const auto& [parameter, gives, takes] : sync->tensors)
      new_values_[parameter] = add_arrival(id, parameters_.at(parameter), *takes);
  }
}

ValueId GradientSyncLowering::receive_value(const std::string& parameter, ValueId value) {
  const SyncedValue& synced = new_values_.at(parameter);
  graph_.wait(synced.communication);
  return unflatten(value, synced);
}

}  // namespace medley
