// Ops that lowering puts around communications.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>

#include "medley/base/error.h"
#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

int64_t total(at::IntArrayRef lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

}  // namespace

Tensor pack(const Tensor& x, int64_t pre, at::IntArrayRef lengths, int64_t post) {
  const int64_t size = total(lengths);
  MEDLEY_CHECK_EQ(x.numel(), pre * size * post);
  if (pre == 1 || x.numel() == 0) return x.reshape({-1});
  const Tensor three = x.reshape({pre, size, post});
  Tensor flat = at::empty({x.numel()}, x.options());
  int64_t offset = 0;
  for (int64_t length : lengths) {
    if (length > 0)
      flat.narrow(0, pre * offset * post, pre * length * post)
          .view({pre, length, post})
          .copy_(three.narrow(1, offset, length));
    offset += length;
  }
  return flat;
}

Tensor unpack(
    const Tensor& flat, int64_t pre, at::IntArrayRef lengths, int64_t post, at::IntArrayRef shape) {
  const int64_t size = total(lengths);
  MEDLEY_CHECK_EQ(flat.numel(), pre * size * post);
  if (pre == 1 || flat.numel() == 0) return flat.reshape(shape);
  Tensor x = at::empty({pre, size, post}, flat.options());
  int64_t offset = 0;
  for (int64_t length : lengths) {
    if (length > 0)
      x.narrow(1, offset, length)
          .copy_(
              flat.narrow(0, pre * offset * post, pre * length * post).view({pre, length, post}));
    offset += length;
  }
  return x.view(shape);
}

Tensor take(const Tensor& x,
            int64_t pre,
            int64_t size,
            int64_t post,
            int64_t offset,
            int64_t length,
            at::IntArrayRef shape) {
  if (x.numel() == 0 || length == 0) return at::empty(shape, x.options());
  return x.reshape({pre, size, post}).narrow(1, offset, length).contiguous().view(shape);
}

Tensor place(const Tensor& x,
             int64_t pre,
             int64_t size,
             int64_t post,
             int64_t offset,
             int64_t length,
             at::IntArrayRef shape,
             double fill) {
  Tensor whole = at::full(shape, fill, x.options());
  if (x.numel() > 0)
    whole.view({pre, size, post}).narrow(1, offset, length).copy_(x.reshape({pre, length, post}));
  return whole;
}

Tensor keep_first(const Tensor& x, int64_t me) { return me == 0 ? x : at::zeros_like(x); }

Tensor scaled_sum(const Tensor& sum, double factor) { return sum.mul(factor); }

Tensor expand_channels(const Tensor& bias, at::IntArrayRef shape) {
  std::vector<int64_t> column(shape.size(), 1);
  column[1] = shape[1];
  return bias.view(column).expand(shape).contiguous();
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_empty(const Tensor& grad,
                                                              at::IntArrayRef input,
                                                              at::IntArrayRef weight) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < grad.dim(); ++d) dims.push_back(d);
  return {at::zeros(input, grad.options()), at::zeros(weight, grad.options()), grad.sum(dims)};
}

}  // namespace medley
