#include "medley/torch/update.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

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
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
  };
  // A fused call takes tensors of one type only.
  std::map<std::pair<c10::ScalarType, c10::ScalarType>, Lists> calls;
  at::Tensor step;
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    own_all(each);
    at::Tensor& into = target(each);
    prepare_gradient(each.gradient, into.scalar_type(), now.clip_scale);
    if (!step.defined()) step = at::full({}, now.step, into.options().dtype(c10::kFloat));
    Lists& lists = calls[{into.scalar_type(), each.first.scalar_type()}];
    lists.parameters.push_back(into);
    lists.gradients.push_back(each.gradient.contiguous());
    lists.first.push_back(each.first);
    lists.second.push_back(each.second);
    lists.steps.push_back(step);
  }
  for (auto& [types, lists] : calls)
    at::_fused_adamw_(lists.parameters,
                      lists.gradients,
                      lists.first,
                      lists.second,
                      {},
                      lists.steps,
                      now.learning_rate,
                      hyperparameters.beta1,
                      hyperparameters.beta2,
                      hyperparameters.weight_decay,
                      hyperparameters.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
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
