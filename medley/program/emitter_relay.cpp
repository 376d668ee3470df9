// What several stages sum (relays.h).

#include <algorithm>

#include "medley/base/at.h"
#include "medley/program/emitter.h"

namespace medley {

bool Emitter::Relaying::is_done() const {
  for (size_t t = 0; t < gradients.size(); ++t)
    if (gradients[t] == kNone && relay->tensors[t].gives) return false;
  return true;
}

void Emitter::expect_relays(const std::vector<StageRelay>& relays) {
  for (const StageRelay& relay : relays)
    relaying_.push_back({&relay, std::vector<ValueId>(relay.tensors.size(), kNone)});
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
      start(value, tensor.state);
      post_relays(false);
      return true;
    }
  return false;
}

void Emitter::flush_relays() { post_relays(true); }

// Whether a gradient of it is still on its way through the mesh.
bool Emitter::waits_in_mesh(const Relaying& relaying) const {
  for (size_t t = 0; t < relaying.gradients.size(); ++t) {
    const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
    if (!tensor.gives) continue;
    const ValueId value = relaying.gradients[t];
    for (const Conversion& step :
         conversions(own_state(value), on_axes_that_matter(tensor.state, own_state(value))))
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

void Emitter::post_relay(const Relaying& relaying) {
  Communication communication;
  communication.kind = CommunicationKind::kRelay;
  communication.name = relaying.relay->name;
  communication.devices = relaying.relay->devices;
  communication.relay = relaying.relay->cells;
  flush_buckets();
  for (size_t t = 0; t < relaying.gradients.size(); ++t) {
    const StageRelay::Tensor& tensor = relaying.relay->tensors[t];
    const ValueId value = relaying.gradients[t];
    if (tensor.gives) communication.inputs.push_back(in_state(value, tensor.state));
  }
  const int id = static_cast<int>(stage.communications.size());
  stage.communications.push_back(communication);
  post(id);
  for (size_t t = 0; t < relaying.gradients.size(); ++t) {
    const ValueId value = relaying.gradients[t];
    const State state = on_axes_that_matter(relaying.relay->tensors[t].state, own_state(value));
    const std::vector<Size> sizes = local_factors(value, state);
    const TensorType flat{graph_.values[at(value)].type.dtype, {product(sizes, 0, sizes.size())}};
    const ValueId sum = add_local_value(flat, Lifetime::kStep);
    stage.communications[at(id)].outputs.push_back(sum);
    relayed_[value] = {id, sum, state};
  }
}

// From now on the value is the sum.
void Emitter::finish_relay(ValueId value, const Relayed& relayed) {
  const Relayed arrived = relayed;
  relayed_.erase(value);
  wait(arrived.communication);
  const TensorType type = local_type(value, arrived.state);
  const ValueId local = add_local_op(
      local_op("aten.view.default", {ValueArgument{arrived.flat}, type.shape}), {type})[0];
  for (auto& [key, all] : held_)
    if (key.first == value) all.clear();
  std::erase_if(started_, [&](const auto& each) { return each.first.first == value; });
  arrived_[value] = arrived.state;
  define(value, arrived.state, local, phase_);
}

}  // namespace medley
