#include "medley/torch/update.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <map>
#include <tuple>

#include "medley/torch/tensor_buffer.h"

namespace medley {
namespace {

struct Scalars {
  double learning_rate, step, clip_scale;
};

Scalars read(const at::Tensor& scalars) {
  const at::Tensor host = scalars.cpu().contiguous();
  const double* values = host.const_data_ptr<double>();
  return {values[0], values[1], values[2]};
}

// Makes a tensor that may be written, without turned dims: the fused kernel takes all its tensors
// for flat ones. The reference of the caller is the only one it has.
void own(at::Tensor& tensor) {
  if (!tensor.defined() || (is_unique(tensor) && tensor.is_contiguous())) return;
  tensor = tensor.clone(at::MemoryFormat::Contiguous);
}

// Makes the gradient one of the type that the arithmetic is done in, multiplied by the clip scale.
void prepare_gradient(at::Tensor& gradient, c10::ScalarType type, double clip_scale) {
  if (gradient.scalar_type() != type) gradient = gradient.to(type);
  if (clip_scale == 1.0) return;
  if (is_unique(gradient))
    gradient.mul_(clip_scale);
  else
    gradient = at::mul(gradient, clip_scale);
}

at::Tensor& target(Updated& each) { return each.master.defined() ? each.master : each.parameter; }

void own_all(Updated& each) {
  own(target(each));
  own(each.first);
  own(each.second);
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.view({-1}); }

// What the fused kernel takes of one parameter, flat: itself, its gradient, its two moments.
constexpr size_t kNumFields = 4;
using Fields = std::array<at::Tensor, kNumFields>;
using Types = std::pair<c10::ScalarType, c10::ScalarType>;

// On a processor the fused kernel computes whole vectors at once and what is left of a tensor one
// by one, which rounds otherwise: an element's new value would depend on the shard that it is in,
// and differ between stages that hold it. So what is left of all tensors is computed as vectors,
// too: in one tensor, padded.
class Remainders {
 public:
  // Leaves whole vectors of each part, and appends a part that has the rest.
  explicit Remainders(std::vector<Fields>& parts) {
    Fields rest;
    int64_t length = 0;
    for (Fields& part : parts) {
      const int64_t whole = part[0].numel() / kElements * kElements;
      const int64_t left = part[0].numel() - whole;
      if (left == 0 || !part[0].is_cpu()) continue;
      for (at::Tensor& field : part) {
        pieces_.push_back(field.narrow(0, whole, left));
        field = field.narrow(0, 0, whole);
      }
      length += left;
    }
    if (pieces_.empty()) return;
    const int64_t padded = (length + kElements - 1) / kElements * kElements;
    for (size_t field = 0; field < kNumFields; ++field) {
      rest[field] = at::zeros({padded}, pieces_[field].options());
      int64_t next = 0;
      for (size_t i = field; i < pieces_.size(); i += kNumFields) {
        rest[field].narrow(0, next, pieces_[i].numel()).copy_(pieces_[i]);
        next += pieces_[i].numel();
      }
    }
    parts.push_back(rest);
    rest_ = rest;
  }

  void put_back() {
    int64_t next = 0;
    for (size_t i = 0; i < pieces_.size(); i += kNumFields) {
      const int64_t length = pieces_[i].numel();
      for (size_t field = 0; field < kNumFields; ++field)
        if (field != kGradient) pieces_[i + field].copy_(rest_[field].narrow(0, next, length));
      next += length;
    }
  }

 private:
  static constexpr int64_t kElements = 64;  // a multiple of every vector's
  static constexpr size_t kGradient = 1;
  std::vector<at::Tensor> pieces_;  // the fields of one tensor after the other
  Fields rest_;
};

void copy_master(Updated& each) {
  if (!each.master.defined()) return;
  own(each.parameter);
  each.parameter.copy_(each.master);
}

}  // namespace

void adamw(std::vector<Updated>& parameters,
           const at::Tensor& scalars,
           const AdamwHyperparameters& hyperparameters) {
  const Scalars now = read(scalars);
  // A fused call takes tensors of one type only.
  std::map<Types, std::vector<Fields>> parts;
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    own_all(each);
    at::Tensor& into = target(each);
    prepare_gradient(each.gradient, into.scalar_type(), now.clip_scale);
    parts[{into.scalar_type(), each.first.scalar_type()}].push_back(
        {flat(into), flat(each.gradient.contiguous()), flat(each.first), flat(each.second)});
  }
  for (auto& [types, all] : parts) {
    Remainders remainders(all);
    std::array<std::vector<at::Tensor>, kNumFields> lists;
    std::vector<at::Tensor> steps;
    const at::Tensor step = at::full({}, now.step, all[0][0].options().dtype(c10::kFloat));
    for (const Fields& part : all) {
      if (part[0].numel() == 0) continue;
      for (size_t field = 0; field < kNumFields; ++field) lists[field].push_back(part[field]);
      steps.push_back(step);
    }
    at::_fused_adamw_(lists[0],
                      lists[1],
                      lists[2],
                      lists[3],
                      {},
                      steps,
                      now.learning_rate,
                      hyperparameters.beta1,
                      hyperparameters.beta2,
                      hyperparameters.weight_decay,
                      hyperparameters.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
    remainders.put_back();
  }
  for (Updated& each : parameters) copy_master(each);
}

void sgd(std::vector<Updated>& parameters,
         const at::Tensor& scalars,
         const SgdHyperparameters& hyperparameters) {
  const Scalars now = read(scalars);
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    own_all(each);
    at::Tensor& into = target(each);
    prepare_gradient(each.gradient, into.scalar_type(), now.clip_scale);
    at::Tensor direction = each.gradient;
    if (hyperparameters.weight_decay != 0)
      direction = direction.add(into, hyperparameters.weight_decay);
    if (each.first.defined()) {
      each.first.mul_(hyperparameters.momentum).add_(direction);
      direction = hyperparameters.nesterov ? direction.add(each.first, hyperparameters.momentum)
                                           : each.first;
    }
    into.add_(direction, -now.learning_rate);
    copy_master(each);
  }
}

}  // namespace medley
