// Ops that planning appends to a graph, except optimizers: clipping, accumulation.

#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include "medley/base/error.h"
#include "medley/kernels/kernels.h"
#include "medley/kernels/update.h"

namespace medley {
namespace {

using at::Tensor;

Tensor rows_of(const Tensor& x) {
  const auto sizes = x.sizes();
  int64_t rows = 1;
  for (int64_t size : sizes.slice(0, sizes.size() - 1)) rows *= size;
  return x.reshape({rows, sizes.back()});
}

}  // namespace

// Products of 16-bit values do not overflow f32. Sums are in f32 within a tensor, and in f64 over
// tensors.
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
  return {norm, norm.add(1e-6).reciprocal().mul(max_norm)};
}

Tensor scale_scalars(const Tensor& scalars, const Tensor& scale) {
  Tensor scaled = scalars.clone();
  scaled.select(0, 2).mul_(scale).clamp_max_(1.0);
  return scaled;
}

Tensor average(const Tensor& average, const Tensor& updated, const Tensor& scalars, double weight) {
  const UpdateNow now = read_scalars(scalars, {});
  if (now.skips()) return average.alias();
  if (!std::isnan(now.kept)) return average.lerp(updated, 1 - now.kept);
  return now.step == 1 ? updated.clone() : average.lerp(updated, weight);
}

Tensor accumulate(const Tensor& grad) { return grad.clone(); }
Tensor accumulate_mean(const Tensor& grad, int64_t count) { return grad.div(count); }

Tensor step_sum(const Tensor& x) { return x.clone(); }
Tensor step_share(const Tensor& x, int64_t rows, int64_t all) {
  return x.mul(static_cast<double>(rows) / static_cast<double>(all));
}

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
