#include "medley/lower/gradient_sync.h"

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"

namespace medley {

bool GradientSync::Relaying::is_done() const {
  for (size_t t = 0; t < given.size(); ++t)
    if (given[t] == kNone && relay->tensors[t].gives) return false;
  return true;
}

GradientSync::GradientSync(LocalGraph& graph,
                           LocalValues& values,
                           Redistribution& redistribution,
                           const Connections& connections)
    : graph_(graph),
      values_(values),
      redistribution_(redistribution),
      shares_(connections.shares),
      wire_(connections.wire) {
  for (const StageRelay& relay : connections.gradients)
    relaying_.push_back({&relay, std::vector<ValueId>(relay.tensors.size(), kNone)});
  for (const StageRelay& relay : connections.values)
    spreading_.push_back({&relay, std::vector<ValueId>(relay.tensors.size(), kNone)});
  for (const Input& input : graph.source.inputs)
    if (input.kind == InputKind::kParameter) parameters_[input.name] = input.value;
}

bool GradientSync::relay(const std::string& parameter, ValueId value) {
  for (Relaying& relaying : relaying_)
    for (size_t t = 0; t < relaying.given.size(); ++t) {
      const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
      if (tensor.parameter != parameter) continue;
      relaying.given[t] = value;
      if (!tensor.gives) {
        values_.expect(value);
        return true;
      }
      values_.start(value, tensor.gives->state);
      post_relays(false);
      return true;
    }
  return false;
}

void GradientSync::finish() {
  for (int communication : posted_relays_) graph_.wait(communication);
}

// Returns whether a gradient of the relay is still being reduced within the mesh.
bool GradientSync::waits_in_mesh(const Relaying& relaying) const {
  for (size_t t = 0; t < relaying.given.size(); ++t) {
    const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
    if (!tensor.gives) continue;
    const State& own = values_.own_state(relaying.given[t]);
    for (const Conversion& step :
         values_.conversions(own, values_.on_axes_that_matter(tensor.gives->state, own)))
      if (!step.is_local()) return true;
  }
  return false;
}

void GradientSync::post_relays(bool all) {
  for (; next_relay_ < relaying_.size(); ++next_relay_) {
    const Relaying& next = relaying_[next_relay_];
    if (!next.is_done()) return;
    const bool is_followed =
        next_relay_ + 1 < relaying_.size() && relaying_[next_relay_ + 1].is_done();
    if (!all && !is_followed && waits_in_mesh(next)) return;
    post_relay(next);
  }
}

int GradientSync::post_relay(const StageRelay& relay, const std::vector<ValueId>& inputs) {
  Communication communication;
  communication.kind = CommunicationKind::kRelay;
  communication.name = relay.name;
  communication.devices = relay.devices;
  communication.relay = relay.cells;
  for (ValueId input : inputs) communication.inputs.push_back(graph_.on_wire(input, wire_));
  const int id = graph_.add(std::move(communication));
  graph_.post(id);
  return id;
}

// Returns the type of a stage's part of a value at an end.
TensorType GradientSync::type_of_end(ValueId value, const StageRelay::End& end) {
  MEDLEY_CHECK(!graph_.shares.contains(value));
  if (end.share) graph_.shares[value] = *end.share;
  TensorType type = graph_.local_type(value, end.state);
  graph_.shares.erase(value);
  return type;
}

GradientSync::Relayed GradientSync::add_arrival(int communication,
                                                ValueId value,
                                                const StageRelay::End& end) {
  const TensorType type = type_of_end(value, end);
  const ValueId sum = graph_.add_value(
      {replace_bf16(type.dtype, wire_), {product(type.shape, 0, type.shape.size())}},
      Lifetime::kStep);
  graph_.stage.communications[at(communication)].outputs.push_back(sum);
  return {communication, sum, end};
}

void GradientSync::post_relay(const Relaying& relaying) {
  redistribution_.flush_buckets();
  std::vector<ValueId> inputs;
  for (size_t t = 0; t < relaying.given.size(); ++t)
    if (const auto& gives = relaying.relay->tensors[t].gives)
      inputs.push_back(values_.in_state(relaying.given[t], gives->state));
  const int id = post_relay(*relaying.relay, inputs);
  for (size_t t = 0; t < relaying.given.size(); ++t) {
    const ValueId value = relaying.given[t];
    if (!relaying.relay->tensors[t].takes) continue;
    StageRelay::End end = *relaying.relay->tensors[t].takes;
    end.state = values_.on_axes_that_matter(end.state, values_.own_state(value));
    const Relayed relayed = add_arrival(id, value, end);
    values_.finish_first(value, [this, value, relayed] { finish_relay(value, relayed); });
  }
  posted_relays_.push_back(id);
}

// Replaces the value by the sum.
void GradientSync::finish_relay(ValueId value, const Relayed& relayed) {
  graph_.wait(relayed.communication);
  if (relayed.end.share) graph_.shares[value] = *relayed.end.share;
  values_.arrive(value, relayed.end.state, unflatten(value, relayed));
}

ValueId GradientSync::unflatten(ValueId value, const Relayed& relayed) {
  const TensorType type = graph_.local_type(value, relayed.end.state);
  return graph_.view(graph_.cast(relayed.flat, type.dtype), type);
}

void GradientSync::restrict_to_share(const std::string& parameter, ValueId value) {
  if (const auto share = shares_.find(parameter); share != shares_.end())
    graph_.shares[value] = share->second;
}

ValueId GradientSync::take_share(const std::string& parameter, ValueId value, const State& state) {
  const ValueId whole = values_.in_state(value, state);
  const auto share = shares_.find(parameter);
  if (share == shares_.end()) return whole;
  const auto& [position, interval] = share->second;
  const std::vector<Size> sizes = graph_.local_factors(value, state);
  const auto p = at(position);
  const Size& full = graph_.full_size(value, position);
  return graph_.shard(ShardOp::kTake,
                      whole,
                      {product(sizes, 0, p),
                       sizes[p],
                       product(sizes, p + 1, sizes.size()),
                       graph_.symbols.start_within(state, position, full, interval),
                       graph_.symbols.length_within(state, position, full, interval)},
                      type_of_end(value, {state, share->second}));
}

void GradientSync::send_value(const std::string& parameter, ValueId value) {
  for (Relaying& spreading : spreading_)
    for (size_t t = 0; t < spreading.given.size(); ++t) {
      const StageRelay::Tensor& tensor = spreading.relay->tensors[t];
      if (tensor.parameter == parameter)
        spreading.given[t] = values_.in_state(value, tensor.gives->state);
    }
  send_values();
}

void GradientSync::send_values() {
  for (; next_values_ < spreading_.size() && spreading_[next_values_].is_done(); ++next_values_) {
    const auto& [relay, given] = spreading_[next_values_];
    std::vector<ValueId> inputs;
    for (ValueId value : given)
      if (value != kNone) inputs.push_back(value);
    const int id = post_relay(*relay, inputs);
    for (const auto& [parameter, gives, takes] : relay->tensors)
      new_values_[parameter] = add_arrival(id, parameters_.at(parameter), *takes);
  }
}

ValueId GradientSync::receive_value(const std::string& parameter, ValueId value) {
  const Relayed& relayed = new_values_.at(parameter);
  graph_.wait(relayed.communication);
  return unflatten(value, relayed);
}

}  // namespace medley
