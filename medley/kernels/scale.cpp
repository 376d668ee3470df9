// The loss scale of devices that compute in f16 (ops/local_ops.h). Powers of two keep scaling
// exact; the host does not read the values.

#include <ATen/ops/clamp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

Tensor scale_of(const Tensor& state, double first) { return state.select(0, 0).add(1).mul(first); }

}  // namespace

Tensor same_gradient(const Tensor& grad) { return grad.alias(); }

Tensor scale_loss(const Tensor& grad, const Tensor& state, double first) {
  return grad.mul(scale_of(state, first).to(grad.scalar_type()));
}

Tensor unscale_squares(const Tensor& sum_of_squares, const Tensor& state, double first) {
  const Tensor scale = scale_of(state, first);
  return sum_of_squares.div(scale.mul(scale));
}

Tensor scaled_step(const Tensor& scalars,
                   const Tensor& norm,
                   const Tensor& clip,
                   const Tensor& state,
                   double first,
                   bool clips) {
  const Tensor factor = scale_of(state, first).reciprocal();
  const Tensor used = clips ? factor.mul(clip.mul(scalars.select(0, 2)).clamp_max(1.0)) : factor;
  const Tensor none = at::full_like(factor, std::numeric_limits<double>::quiet_NaN());
  Tensor step = scalars.clone();
  step.select(0, 1).sub_(state.select(0, 2));
  step.select(0, 2).copy_(at::where(at::isfinite(norm), used, none));
  return step;
}

Tensor next_scale(const Tensor& state, const Tensor& sum_of_squares, int64_t good_steps) {
  static const double kMost = std::ldexp(1.0, 40);
  const Tensor good = at::isfinite(sum_of_squares);
  const Tensor before = state.select(0, 0);
  const Tensor factor = before.add(1), count = state.select(0, 1).add(1);
  const Tensor grows = good.logical_and(count.ge(static_cast<double>(good_steps)));
  const Tensor kept = at::where(grows, factor.mul(2), factor);
  return at::stack({at::where(good, kept, factor.div(2)).clamp(1 / kMost, kMost).sub(1),
                    at::where(good.logical_and(grows.logical_not()), count, at::zeros_like(count)),
                    state.select(0, 2).add(good.logical_not().to(state.scalar_type())),
                    before});
}

}  // namespace medley
