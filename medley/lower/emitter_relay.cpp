// What several stages sum (relays.h).

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/lower/emitter.h"

namespace medley {

bool Emitter::Relaying::is_done() const {
  for (size_t t = 0; t < gradients.size(); ++t)
    if (gradients[t] == kNone && relay->tensors[t].gives) return false;
  return true;
}

bool Emitter::Spreading::is_done() const {
  for (size_t t = 0; t < given.size(); ++t)
    if (given[t] == kNone && relay->tensors[t].gives) return false;
  return true;
}

void Emitter::expect_relays(const Connections& connections) {
  for (const StageRelay& relay : connections.gradients)
    relaying_.push_back({&relay, std::vector<ValueId>(relay.tensors.size(), kNone)});
  for (const StageRelay& relay : connections.values)
    spreading_.push_back({&relay, std::vector<ValueId>(relay.tensors.size(), kNone)});
  shares_ = &connections.shares;
  relay_wire_ = connections.wire;
  for (const Input& input : graph_.inputs)
    if (input.kind == InputKind::kParameter) parameters_[input.name] = input.value;
}

bool Emitter::relay(const std::string& parameter, ValueId value) {
  for (Relaying& relaying : relaying_)
    for (size_t t = 0; t < relaying.gradients.size(); ++t) {
      const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
      if (tensor.parameter != parameter) continue;
      relaying.gradients[t] = value;
      if (!tensor.gives) {
        received_.insert(value);
        return true;
      }
      start(value, tensor.gives->state);
      post_relays(false);
      return true;
    }
  return false;
}

void Emitter::flush_relays() { post_relays(true); }

void Emitter::finish_relays() {
  for (int communication : posted_relays_) wait(communication);
}

// Whether a gradient of it is still on its way through the mesh.
bool Emitter::waits_in_mesh(const Relaying& relaying) const {
  for (size_t t = 0; t < relaying.gradients.size(); ++t) {
    const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
    if (!tensor.gives) continue;
    const ValueId value = relaying.gradients[t];
    for (const Conversion& step :
         conversions(own_state(value), on_axes_that_matter(tensor.gives->state, own_state(value))))
      if (!is_local(step)) return true;
  }
  return false;
}

void Emitter::post_relays(bool all) {
  for (; next_relay_ < relaying_.size(); ++next_relay_) {
    const Relaying& next = relaying_[next_relay_];
    if (!next.is_done()) return;
    const bool is_followed =
        next_relay_ + 1 < relaying_.size() && relaying_[next_relay_ + 1].is_done();
    if (!all && !is_followed && waits_in_mesh(next)) return;
    post_relay(next);
  }
}

int Emitter::post_relay(const StageRelay& relay, const std::vector<ValueId>& inputs) {
  Communication communication;
  communication.kind = CommunicationKind::kRelay;
  communication.name = relay.name;
  communication.devices = relay.devices;
  communication.relay = relay.cells;
  for (ValueId input : inputs) communication.inputs.push_back(on_wire(input, relay_wire_));
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(std::move(communication));
  post(id);
  return id;
}

// What a stage has of a value at an end.
TensorType Emitter::type_of_end(ValueId value, const StageRelay::End& end) {
  MEDLEY_CHECK(!find_share(value));
  if (end.share) restricted_[value] = *end.share;
  TensorType type = local_type(value, end.state);
  restricted_.erase(value);
  return type;
}

ValueId Emitter::add_arrival(int communication, ValueId value, const StageRelay::End& end) {
  const TensorType type = type_of_end(value, end);
  const ValueId sum = add_local_value(
      {replace_bf16(type.dtype, relay_wire_), {product(type.shape, 0, type.shape.size())}},
      Lifetime::kStep);
  stage.communications[at(communication)].outputs.push_back(sum);
  return sum;
}

void Emitter::post_relay(const Relaying& relaying) {
  flush_buckets();
  std::vector<ValueId> inputs;
  for (size_t t = 0; t < relaying.gradients.size(); ++t)
    if (const auto& gives = relaying.relay->tensors[t].gives)
      inputs.push_back(in_state(relaying.gradients[t], gives->state));
  const int id = post_relay(*relaying.relay, inputs);
  for (size_t t = 0; t < relaying.gradients.size(); ++t) {
    const ValueId value = relaying.gradients[t];
    if (!relaying.relay->tensors[t].takes) continue;
    StageRelay::End end = *relaying.relay->tensors[t].takes;
    end.state = on_axes_that_matter(end.state, own_state(value));
    relayed_[value] = {id, add_arrival(id, value, end), end};
  }
  posted_relays_.push_back(id);
}

// From now on the value is the sum.
void Emitter::finish_relay(ValueId value, const Relayed& relayed) {
  const auto [communication, flat, end] = relayed;
  relayed_.erase(value);
  wait(communication);
  if (end.share) restricted_[value] = *end.share;
  const TensorType type = local_type(value, end.state);
  const ValueId sum = cast(flat, type.dtype);
  const ValueId local =
      add_local_op(local_op("aten.view.default", {ValueArgument{sum}, type.shape}), {type})[0];
  for (auto& [key, all] : held_)
    if (key.first == value) all.clear();
  std::erase_if(started_, [&](const auto& each) { return each.first.first == value; });
  arrived_[value] = end.state;
  define(value, end.state, local, phase_);
}

void Emitter::restrict_to_share(const std::string& parameter, ValueId value) {
  if (const auto share = shares_->find(parameter); share != shares_->end())
    restricted_[value] = share->second;
}

const OwnedShare* Emitter::find_share(ValueId value) const {
  const auto share = restricted_.find(value);
  return share == restricted_.end() ? nullptr : &share->second;
}

ValueId Emitter::take_share(const std::string& parameter, ValueId value, const State& state) {
  const ValueId whole = in_state(value, state);
  const auto share = shares_->find(parameter);
  if (share == shares_->end()) return whole;
  const auto& [position, interval] = share->second;
  const std::vector<Size> sizes = local_factors(value, state);
  const auto p = at(position);
  const Size& full = full_size(value, position);
  return shard(ShardOp::kTake,
               whole,
               {product(sizes, 0, p),
                sizes[p],
                product(sizes, p + 1, sizes.size()),
                symbols.start_within(state, position, full, interval),
                symbols.length_within(state, position, full, interval)},
               type_of_end(value, {state, share->second}));
}

void Emitter::send_value(const std::string& parameter, ValueId value) {
  for (Spreading& spreading : spreading_)
    for (size_t t = 0; t < spreading.given.size(); ++t) {
      const StageRelay::Tensor& tensor = spreading.relay->tensors[t];
      if (tensor.parameter == parameter) spreading.given[t] = in_state(value, tensor.gives->state);
    }
  send_values();
}

void Emitter::send_values() {
  for (; next_values_ < spreading_.size() && spreading_[next_values_].is_done(); ++next_values_) {
    const auto& [relay, given] = spreading_[next_values_];
    std::vector<ValueId> inputs;
    for (ValueId value : given)
      if (value != kNone) inputs.push_back(value);
    const int id = post_relay(*relay, inputs);
    for (const auto& [parameter, gives, takes] : relay->tensors) {
      const ValueId value = parameters_.at(parameter);
      new_values_[parameter] = {id, add_arrival(id, value, *takes), *takes};
    }
  }
}

ValueId Emitter::receive_value(const std::string& parameter, ValueId value) {
  const auto& [communication, flat, end] = new_values_.at(parameter);
  wait(communication);
  const TensorType type = local_type(value, end.state);
  const ValueId updated = cast(flat, type.dtype);
  return add_local_op(local_op("aten.view.default", {ValueArgument{updated}, type.shape}),
                      {type})[0];
}

}  // namespace medley
