// What planning appends to a graph: optimizers, clipping, accumulation.

#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include "medley/base/error.h"
#include "medley/torch/kernels.h"
#include "medley/torch/update.h"

namespace medley {
namespace {

using at::Tensor;

// The copies make it functional: update.h writes into what it alone holds.
Tensor copy(const OptionalTensor& tensor) { return tensor ? tensor->clone() : Tensor(); }

Tensor rows_of(const Tensor& x) {
  const auto sizes = x.sizes();
  int64_t rows = 1;
  for (int64_t size : sizes.slice(0, sizes.size() - 1)) rows *= size;
  return x.reshape({rows, sizes.back()});
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> adamw_step(const Tensor& param,
                                                      const Tensor& grad,
                                                      const Tensor& exp_avg,
                                                      const Tensor& exp_avg_sq,
                                                      const OptionalTensor& master,
                                                      const Tensor& scalars,
                                                      double beta1,
                                                      double beta2,
                                                      double eps,
                                                      double weight_decay) {
  std::vector<Updated> one(1);
  one[0] = {copy(param), grad, copy(exp_avg), copy(exp_avg_sq), copy(master)};
  adamw(one, scalars, {beta1, beta2, eps, weight_decay});
  return {one[0].parameter, one[0].first, one[0].second, one[0].master};
}

std::tuple<Tensor, Tensor, Tensor> sgd_step(const Tensor& param,
                                            const Tensor& grad,
                                            const OptionalTensor& momentum_buffer,
                                            const OptionalTensor& master,
                                            const Tensor& scalars,
                                            double momentum,
                                            double weight_decay,
                                            bool nesterov) {
  std::vector<Updated> one(1);
  one[0] = {copy(param), grad, copy(momentum_buffer), {}, copy(master)};
  sgd(one, scalars, {momentum, weight_decay, nesterov});
  return {one[0].parameter, one[0].first, one[0].master};
}

// Products of 16-bit values do not overflow f32; what is summed in f32 is one tensor, and the sum
// over tensors is in f64.
Tensor sum_squares(const Tensor& x) {
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kDouble));
  const Tensor flat = x.reshape({-1});
  if (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf) {
    const Tensor wide = flat.to(at::kFloat);
    return at::dot(wide, wide).to(at::kDouble);
  }
  return at::dot(flat, flat).to(at::kDouble);
}

Tensor add_n(at::TensorList terms) {
  MEDLEY_CHECK(!terms.empty());
  if (terms.size() == 1) return terms[0];
  Tensor sum = terms[0].add(terms[1]);
  for (size_t i = 2; i < terms.size(); ++i) sum.add_(terms[i]);
  return sum;
}

std::tuple<Tensor, Tensor> clip_scale(const Tensor& sum_of_squares, double max_norm) {
  const Tensor norm = sum_of_squares.sqrt();
  return {norm, norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0)};
}

Tensor scale_scalars(const Tensor& scalars, const Tensor& scale) {
  Tensor scaled = scalars.clone();
  scaled.select(0, 2).copy_(scale);
  return scaled;
}

Tensor accumulate(const Tensor& grad) { return grad.clone(); }

Tensor contract(const Tensor& x, const Tensor& w) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(1);
  return at::mm(rows_of(x), w).view(shape);
}

Tensor contract_add(const Tensor& x, const Tensor& w, const Tensor& bias) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(1);
  return at::addmm(bias, rows_of(x), w).view(shape);
}

}  // namespace medley
