// Attention: PyTorch's fused kernels if they apply, else explicit scores.

#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Kernel { kCpu, kFlash, kCudnn, kWrittenOut };

bool is_half(const Tensor& q) {
  return q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
}

// Returns whether scores need an explicit bias. The fused kernels align the causal mask with the
// first key, and accept it only without a bias, so both become one bias.
bool has_bias(const Tensor& q, const Tensor& k, const OptionalTensor& bias, bool causal) {
  return bias || (causal && q.size(2) != k.size(2));
}

// Returns the kernel, on a GPU PyTorch's choice. Flash needs compute capability 8.0.
Kernel choose(const Tensor& q,
              const Tensor& k,
              const Tensor& v,
              const OptionalTensor& bias,
              bool causal,
              double scale) {
  if (q.size(3) != v.size(3)) return Kernel::kWrittenOut;
  if (q.is_cpu()) return Kernel::kCpu;
  if (!q.is_cuda() || !is_half(q) || has_bias(q, k, bias, causal) || q.size(3) % 8 != 0)
    return Kernel::kWrittenOut;
  const auto chosen =
      static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, causal, scale));
  if (chosen == at::SDPBackend::flash_attention) return Kernel::kFlash;
  return chosen == at::SDPBackend::cudnn_attention ? Kernel::kCudnn : Kernel::kWrittenOut;
}

// Repeats every key head for the query heads that use it.
Tensor expand_heads(const Tensor& k, int64_t heads) {
  const int64_t groups = k.size(1);
  if (groups == heads) return k;
  return k.unsqueeze(2)
      .expand({k.size(0), groups, heads / groups, k.size(2), k.size(3)})
      .reshape({k.size(0), heads, k.size(2), k.size(3)});
}

// Sums the gradients of the query heads that use the same key head.
Tensor sum_heads(const Tensor& grad, int64_t groups) {
  if (grad.size(1) == groups) return grad;
  return grad.reshape({grad.size(0), groups, grad.size(1) / groups, grad.size(2), grad.size(3)})
      .sum(2);
}

// Returns a tensor with a contiguous last dim, as the fused kernels require.
Tensor dense(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

struct Mask {
  OptionalTensor bias;
  bool causal;
};

Mask make_mask(const Tensor& q, const Tensor& k, const OptionalTensor& bias, bool causal) {
  OptionalTensor four = bias;
  if (four)
    while (four->dim() < 4) four = four->unsqueeze(0);
  if (four && four->scalar_type() != q.scalar_type()) four = four->to(q.scalar_type());
  if (!causal || !has_bias(q, k, bias, causal)) return {four, causal};
  const int64_t s = q.size(2), t = k.size(2);
  const Tensor hidden = at::ones({s, t}, q.options().dtype(at::kBool)).triu(t - s + 1);
  const Tensor none = four ? *four : at::zeros({1, 1, s, t}, q.options());
  return {none.masked_fill(hidden, -kInfinity), false};
}

Tensor scores(const Tensor& q, const Tensor& k, const Mask& mask, double scale) {
  Tensor scores = at::matmul(q * scale, k.transpose(2, 3));
  if (mask.bias) scores = scores + *mask.bias;
  if (mask.causal) {
    const Tensor hidden = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(hidden, -kInfinity);
  }
  return scores;
}

// Returns the rows without a visible key. Their log-sum is -infinity; the fused CPU kernel returns
// 0.
Tensor sees_nothing(const Tensor& bias) { return bias.amax(-1) == -kInfinity; }

// Rows without a visible key get zero probabilities. exp(scores - lse) would lose the number of
// keys if all scores are large, as for keys masked by -3e38.
Tensor probabilities(const Tensor& scores, const Mask& mask) {
  const Tensor p = at::softmax(scores, -1);
  return mask.bias ? p.masked_fill(sees_nothing(*mask.bias).unsqueeze(-1), 0.0) : p;
}

// Uses the layout of fused kernels, [rows, positions, heads, width]. Joining the heads is then a
// view, not a copy that lives until the backward call.
Tensor heads_side_by_side(const Tensor& x, at::ScalarType type) {
  return x.transpose(1, 2).to(type).contiguous().transpose(1, 2);
}

}  // namespace

std::tuple<Tensor, Tensor> attention_written_out(const Tensor& q,
                                                 const Tensor& k,
                                                 const Tensor& v,
                                                 const OptionalTensor& bias,
                                                 bool causal,
                                                 double scale) {
  const auto type = at::toOpMathType(q.scalar_type());
  const Tensor keys = expand_heads(k, q.size(1)), values = expand_heads(v, q.size(1));
  const Mask mask = make_mask(q, k, bias, causal);
  const Tensor s = scores(q.to(type), keys.to(type), mask, scale);
  const Tensor mixed = at::matmul(probabilities(s, mask), values.to(type));
  return {heads_side_by_side(mixed, q.scalar_type()), at::logsumexp(s, -1)};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_written_out(const Tensor& grad_out,
                                                                  const Tensor& q,
                                                                  const Tensor& k,
                                                                  const Tensor& v,
                                                                  const OptionalTensor& bias,
                                                                  const Tensor& out,
                                                                  bool causal,
                                                                  double scale) {
  const auto type = at::toOpMathType(q.scalar_type());
  const Tensor keys = expand_heads(k, q.size(1)), values = expand_heads(v, q.size(1));
  const Mask mask = make_mask(q, k, bias, causal);
  const Tensor grad = grad_out.to(type);
  const Tensor p = probabilities(scores(q.to(type), keys.to(type), mask, scale), mask);
  const Tensor delta = (grad * out.to(type)).sum(-1, /*keepdim=*/true);
  const Tensor ds = p * (at::matmul(grad, values.to(type).transpose(2, 3)) - delta);
  const Tensor dq = at::matmul(ds, keys.to(type)) * scale;
  const Tensor dk = at::matmul(ds.transpose(2, 3), q.to(type)) * scale;
  const Tensor dv = at::matmul(p.transpose(2, 3), grad);
  return {dq.to(q.scalar_type()),
          sum_heads(dk.to(q.scalar_type()), k.size(1)),
          sum_heads(dv.to(q.scalar_type()), v.size(1))};
}

std::tuple<Tensor, Tensor> attention(const Tensor& q,
                                     const Tensor& k,
                                     const Tensor& v,
                                     const OptionalTensor& bias,
                                     bool causal,
                                     double scale) {
  if (q.numel() == 0 || k.numel() == 0) {
    const auto stats = q.options().dtype(at::toOpMathType(q.scalar_type()));
    return {at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
            at::full({q.size(0), q.size(1), q.size(2)}, -kInfinity, stats)};
  }
  const Tensor keys = expand_heads(k, q.size(1)), values = expand_heads(v, q.size(1));
  const Tensor dense_q = dense(q), dense_k = dense(keys), dense_v = dense(values);
  const Kernel kernel = choose(dense_q, dense_k, dense_v, bias, causal, scale);
  if (kernel == Kernel::kWrittenOut) return attention_written_out(q, k, v, bias, causal, scale);
  const Mask mask = make_mask(q, k, bias, causal);
  if (kernel == Kernel::kCpu) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        dense_q, dense_k, dense_v, 0.0, mask.causal, mask.bias, scale);
    return {out, mask.bias ? lse.masked_fill(sees_nothing(*mask.bias), -kInfinity) : lse};
  }
  if (kernel == Kernel::kCudnn) {
    auto results = at::_scaled_dot_product_cudnn_attention(dense_q,
                                                           dense_k,
                                                           dense_v,
                                                           std::nullopt,
                                                           /*compute_log_sumexp=*/true,
                                                           0.0,
                                                           mask.causal,
                                                           false,
                                                           scale);
    return {std::get<0>(results), std::get<1>(results).view({q.size(0), q.size(1), q.size(2)})};
  }
  auto results = at::_scaled_dot_product_flash_attention(
      dense_q, dense_k, dense_v, 0.0, mask.causal, false, scale);
  return {std::get<0>(results), std::get<1>(results)};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_out,
                                                      const Tensor& q,
                                                      const Tensor& k,
                                                      const Tensor& v,
                                                      const OptionalTensor& bias,
                                                      const Tensor& out,
                                                      const Tensor& lse,
                                                      bool causal,
                                                      double scale) {
  if (q.numel() == 0 || k.numel() == 0)
    return {at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  const Tensor keys = expand_heads(k, q.size(1)), values = expand_heads(v, q.size(1));
  const Tensor dense_q = dense(q), dense_k = dense(keys), dense_v = dense(values);
  const Kernel kernel = choose(dense_q, dense_k, dense_v, bias, causal, scale);
  if (kernel == Kernel::kWrittenOut)
    return attention_backward_written_out(grad_out, q, k, v, bias, out, causal, scale);
  const Mask mask = make_mask(q, k, bias, causal);
  Tensor dq, dk, dv;
  if (kernel == Kernel::kCpu) {
    const Tensor stats = mask.bias ? lse.masked_fill(lse == -kInfinity, 0.0) : lse;
    std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_for_cpu_backward(dense(grad_out),
                                                                                    dense_q,
                                                                                    dense_k,
                                                                                    dense_v,
                                                                                    dense(out),
                                                                                    stats,
                                                                                    0.0,
                                                                                    mask.causal,
                                                                                    mask.bias,
                                                                                    scale);
  } else if (kernel == Kernel::kCudnn) {
    const Tensor none = at::empty({}, q.options().dtype(at::kLong));
    std::tie(dq, dk, dv) = at::_scaled_dot_product_cudnn_attention_backward(dense(grad_out),
                                                                            dense_q,
                                                                            dense_k,
                                                                            dense_v,
                                                                            dense(out),
                                                                            lse.unsqueeze(-1),
                                                                            none,
                                                                            none,
                                                                            Tensor(),
                                                                            Tensor(),
                                                                            Tensor(),
                                                                            q.size(2),
                                                                            k.size(2),
                                                                            0.0,
                                                                            mask.causal,
                                                                            scale);
  } else {
    const Tensor none = at::empty({0}, q.options().dtype(at::kLong));
    std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(dense(grad_out),
                                                                            dense_q,
                                                                            dense_k,
                                                                            dense_v,
                                                                            dense(out),
                                                                            lse,
                                                                            Tensor(),
                                                                            Tensor(),
                                                                            q.size(2),
                                                                            k.size(2),
                                                                            0.0,
                                                                            mask.causal,
                                                                            none,
                                                                            none,
                                                                            scale);
  }
  return {dq, sum_heads(dk, k.size(1)), sum_heads(dv, v.size(1))};
}

}  // namespace medley
