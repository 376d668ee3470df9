// Ops that localizers write instead of an ATen op whose label is cut.

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "medley/kernels/kernels.h"
#include "medley/kernels/places.h"

namespace medley {
namespace {

using at::Tensor;

constexpr int64_t kSum = 2;  // at::Reduction::Sum

// The indices into a shard, and which of them are inside it.
struct Selected {
  Tensor index;  // any valid one if outside
  Tensor inside;
};

Selected select_range(const Tensor& indices, int64_t offset, int64_t size) {
  const Tensor local = indices - offset;
  const Tensor inside = local.ge(0).logical_and_(local.lt(size));
  return {at::where(inside, local, at::zeros_like(local)), inside};
}

// Returns the weight of every target: 0 if ignored.
Tensor target_weights(const Tensor& target,
                      const OptionalTensor& weight,
                      int64_t ignore_index,
                      const at::TensorOptions& options) {
  const Tensor used = target.ne(ignore_index);
  if (!weight) return used.to(options.dtype());
  const Tensor safe = at::where(used, target, at::zeros_like(target));
  return weight->index_select(0, safe.reshape({-1})).view(target.sizes()) *
         used.to(options.dtype());
}

}  // namespace

Tensor mean(const Tensor& x,
            at::IntArrayRef dims,
            bool keepdim,
            std::optional<at::ScalarType> dtype,
            int64_t divisor) {
  const auto all = at::OptionalIntArrayRef(dims.empty() ? at::OptionalIntArrayRef() : dims);
  return at::sum(x, all, keepdim, dtype).div(divisor);
}

Tensor arange_shard(const at::Scalar& start,
                    const at::Scalar& step,
                    at::IntArrayRef sizes,
                    at::IntArrayRef origin,
                    at::IntArrayRef full,
                    at::ScalarType dtype) {
  const Tensor places = places_of(runs_of(sizes, origin, full), at::TensorOptions());
  if (start.isIntegral(true) && step.isIntegral(true)) return (places * step + start).to(dtype);
  return (places.to(at::kDouble) * step + start).to(dtype);
}

Tensor embedding_select(const Tensor& weight, const Tensor& indices, int64_t offset) {
  if (weight.numel() == 0 || indices.numel() == 0) {
    std::vector<int64_t> shape = indices.sizes().vec();
    shape.push_back(weight.size(1));
    return at::zeros(shape, weight.options());
  }
  const Selected selected = select_range(indices, offset, weight.size(0));
  Tensor rows = at::embedding(weight, selected.index);
  return rows.masked_fill_(selected.inside.logical_not().unsqueeze(-1), 0);
}

Tensor embedding_backward_select(const Tensor& grad,
                                 const Tensor& indices,
                                 int64_t num_weights,
                                 int64_t padding_idx,
                                 bool scale_grad_by_freq,
                                 int64_t offset) {
  const int64_t width = grad.size(-1);
  if (grad.numel() == 0 || num_weights == 0) return at::zeros({num_weights, width}, grad.options());
  // An extra row takes the indices of other shards, and the padding.
  Selected selected = select_range(indices, offset, num_weights);
  if (padding_idx >= 0) selected.inside.logical_and_(indices.ne(padding_idx));
  const Tensor index = selected.index.masked_fill(selected.inside.logical_not(), num_weights);
  return at::embedding_dense_backward(
             grad, index, num_weights + 1, /*padding_idx=*/num_weights, scale_grad_by_freq)
      .narrow(0, 0, num_weights);
}

std::tuple<Tensor, Tensor> nll_select(const Tensor& self,
                                      const Tensor& target,
                                      const OptionalTensor& weight,
                                      int64_t reduction,
                                      int64_t ignore_index,
                                      int64_t offset) {
  const Tensor weights = target_weights(target, weight, ignore_index, self.options());
  Tensor losses = at::zeros_like(weights);
  if (self.numel() > 0) {
    const Selected selected = select_range(target, offset, self.size(-1));
    const Tensor taken = self.gather(-1, selected.index.unsqueeze(-1)).squeeze(-1);
    losses = at::where(selected.inside, -taken * weights, losses);
  }
  if (reduction != kSum) return {losses, at::zeros({}, self.options())};
  return {losses.sum(), weights.sum()};
}

Tensor nll_backward_select(const Tensor& grad,
                           const Tensor& self,
                           const Tensor& target,
                           const OptionalTensor& weight,
                           int64_t /*reduction*/,
                           int64_t ignore_index,
                           const Tensor& /*total_weight*/,
                           int64_t offset) {
  if (self.numel() == 0) return at::zeros_like(self);
  const Selected selected = select_range(target, offset, self.size(-1));
  const Tensor weights = target_weights(target, weight, ignore_index, self.options());
  const Tensor values = (-grad * weights).to(self.scalar_type());
  const Tensor inside = at::where(selected.inside, values, at::zeros_like(values));
  return at::zeros_like(self).scatter_(-1, selected.index.unsqueeze(-1), inside.unsqueeze(-1));
}

Tensor mean_loss(const Tensor& sum, const Tensor& weight) {
  return sum.div(weight).to(sum.scalar_type());
}

}  // namespace medley
