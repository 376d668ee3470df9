#include "medley/kernels/update_parts.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/mul.h>

#include "medley/kernels/spare_copies.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

// Makes a tensor writable and contiguous, as the fused kernel requires. The caller has its only
// reference.
void own(at::Tensor& tensor) {
  if (!tensor.defined() || (is_unique(tensor) && tensor.is_contiguous())) return;
  tensor = copy_of(tensor);
}

void prepare_gradient(at::Tensor& gradient, c10::ScalarType type, const UpdateNow& now) {
  if (gradient.scalar_type() != type) gradient = gradient.to(type);
  if (now.clip_scale != 1.0) {
    if (is_unique(gradient))
      gradient.mul_(now.clip_scale);
    else
      gradient = at::mul(gradient, now.clip_scale);
  }
  if (std::isfinite(now.max_value)) gradient = at::clamp(gradient, -now.max_value, now.max_value);
}

}  // namespace

UpdateNow read_scalars(const at::Tensor& scalars, const std::vector<double>& numbers) {
  const at::Tensor host = scalars.cpu().contiguous();
  const double* values = host.const_data_ptr<double>();
  UpdateNow now{values[0], values[1], values[2], {}};
  if (host.numel() > kStepScalars) {
    now.kept = values[3];
    now.max_value = values[4];
    now.numbers.assign(values + kManyScalars, values + host.numel());
  }
  if (now.numbers.empty()) now.numbers = numbers;
  return now;
}

at::Tensor& prepare_update(Updated& each, const UpdateNow& now) {
  at::Tensor& into = each.master.defined() ? each.master : each.parameter;
  own(into);
  for (at::Tensor& state : each.states) own(state);
  prepare_gradient(each.gradient, into.scalar_type(), now);
  return into;
}

void copy_master(Updated& each) {
  if (!each.master.defined()) return;
  own(each.parameter);
  each.parameter.copy_(each.master);
}

}  // namespace medley
