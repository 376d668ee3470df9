// The cross entropy of rows of logits, with probabilities of one block of rows at a time.

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

constexpr int64_t kNoReduction = 0, kMeanOfRows = 1;  // at::Reduction

// Returns the compute type: f64 for f64, else f32.
at::ScalarType type_inside(const Tensor& logits) { return at::toOpMathType(logits.scalar_type()); }

// Returns the rows of a block: small enough for the cache of a core or a GPU, and compared with the
// logits, but large enough for its launches.
int64_t rows_of_a_block(const Tensor& logits) {
  const int64_t size = type_inside(logits) == at::kDouble ? 8 : 4;
  const int64_t least = logits.is_cpu() ? 64 << 10 : 4 << 20;
  const int64_t most = logits.is_cpu() ? (512 << 10) * at::get_num_threads() : 32 << 20;
  const int64_t bytes = std::clamp(logits.numel() * size / 16, least, most);
  const int64_t of_row = std::max<int64_t>(logits.size(1) * size, 1);
  return std::clamp<int64_t>(bytes / of_row, 1, std::max<int64_t>(logits.size(0), 1));
}

Tensor block_of_work(const Tensor& logits) {
  return at::empty({rows_of_a_block(logits), logits.size(1)},
                   logits.options().dtype(type_inside(logits)));
}

// Visits blocks with a function that returns a block's part of a tensor [n, ...].
template <typename Visit>
void for_each_block(const Tensor& logits, const Visit& visit) {
  const int64_t most = rows_of_a_block(logits);
  for (int64_t first = 0; first < logits.size(0); first += most)
    visit([&](const Tensor& x) { return x.narrow(0, first, std::min(most, x.size(0) - first)); });
}

// A valid column for every target, and its weight: 0 if ignored.
struct Targets {
  Tensor ignored, columns, weights;  // [n]
};
Targets targets_of(const Tensor& target,
                   const OptionalTensor& weight,
                   int64_t ignore_index,
                   at::ScalarType type) {
  Tensor ignored = target.eq(ignore_index);
  Tensor columns = target.masked_fill(ignored, 0);
  Tensor weights = weight ? weight->index_select(0, columns).to(type).masked_fill_(ignored, 0)
                          : ignored.logical_not().to(type);
  return {std::move(ignored), std::move(columns), std::move(weights)};
}

// factor * (softmax(logits) - 1 at the target). All but logits and `to` are [n, 1].
struct Gradient {
  Tensor logits, log_sum_exp, columns, factors, to;
};

// Visits blocks with functions for a block's part of a tensor, the place of its gradient, and the
// place of computing. Both places are equal if the type is the compute type.
template <typename Visit>
void for_each_block(const Gradient& g, const Visit& visit) {
  const bool apart = g.to.scalar_type() != type_inside(g.logits);
  const Tensor work = apart ? block_of_work(g.logits) : Tensor();
  for_each_block(g.logits, [&](const auto& part) {
    Tensor to = part(g.to), each = apart ? work.narrow(0, 0, to.size(0)) : to;
    visit(part, to, each);
  });
}

void write_on_processor(const Gradient& g) {
  // The gradient of log-probabilities for the kernel: zeros except in each target's column.
  const Tensor picks = block_of_work(g.logits).zero_();
  for_each_block(g, [&](const auto& part, Tensor& to, Tensor& each) {
    Tensor picked = picks.narrow(0, 0, to.size(0));
    if (!to.is_same(each))  // mixed types would copy the logits whole
      each.copy_(part(g.logits)).sub_(part(g.log_sum_exp));
    else
      at::sub_out(each, part(g.logits), part(g.log_sum_exp));
    picked.scatter_(1, part(g.columns), part(g.factors).neg());
    at::_log_softmax_backward_data_out(each, picked, each, 1, each.scalar_type());
    picked.scatter_(1, part(g.columns), 0);
    if (!to.is_same(each)) to.copy_(each);
  });
}

void write_on_gpu(const Gradient& g) {
  // Reads the logits before the gradient overwrites them.
  const Tensor distance = g.logits.gather(1, g.columns).to(type_inside(g.logits)) - g.log_sum_exp;
  const Tensor at_targets = distance.expm1().mul_(g.factors).to(g.to.scalar_type());
  for_each_block(g, [&](const auto& part, Tensor& to, Tensor& each) {
    at::sub_out(each, part(g.logits), part(g.log_sum_exp));
    // Computes factor * exp(each), with each <= 0, in one kernel.
    at::elu_backward_out(to, part(g.factors), 1, 1, 1, false, each);
  });
  g.to.scatter_(1, g.columns, at_targets);
}

}  // namespace

Tensor log_sum_exp(const Tensor& logits) {
  Tensor result = at::empty({logits.size(0)}, logits.options().dtype(type_inside(logits)));
  if (logits.numel() == 0) return result.zero_();
  const Tensor block = block_of_work(logits);
  Tensor largest, column;  // on a GPU, where finding it in few rows is slow
  if (!logits.is_cpu()) std::tie(largest, column) = at::max(logits, 1, true);
  for_each_block(logits, [&](const auto& part) {
    const Tensor x = part(logits);
    Tensor sums = part(result), work = block.narrow(0, 0, x.size(0));
    // One kernel computes exponentials and their sum in one pass. For the largest logit it gives
    // the logarithm of the sum.
    const Tensor from = x.scalar_type() == work.scalar_type() ? x : work.copy_(x);
    const Tensor most = logits.is_cpu() ? at::amax(from, {1}) : Tensor();
    at::_log_softmax_out(work, from, 1, false);
    if (logits.is_cpu())
      at::sub_out(sums, most, at::amax(work, {1}));
    else
      sums.copy_(work.gather(1, part(column)).squeeze(1));
  });
  if (!logits.is_cpu()) result.neg_().add_(largest.squeeze(1));
  return result;
}

std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits,
                                         const Tensor& log_sum_exp,
                                         const Tensor& target,
                                         const OptionalTensor& weight,
                                         int64_t reduction,
                                         int64_t ignore_index) {
  const auto [ignored, columns, weights] =
      targets_of(target, weight, ignore_index, log_sum_exp.scalar_type());
  const Tensor taken = logits.gather(1, columns.unsqueeze(1)).squeeze(1);
  // Masks instead of multiplying by 0, since the loss may be infinite.
  const Tensor losses = (log_sum_exp - taken).mul_(weights).masked_fill_(ignored, 0);
  if (reduction == kNoReduction) return {losses, at::zeros({}, losses.options())};
  const Tensor total = weights.sum();
  const Tensor sum = losses.sum();
  return {reduction == kMeanOfRows ? sum.div(total) : sum, total};
}

Tensor& cross_entropy_backward_out(const Tensor& logits,
                                   const Tensor& log_sum_exp,
                                   const Tensor& grad,
                                   const Tensor& target,
                                   const OptionalTensor& weight,
                                   int64_t reduction,
                                   int64_t ignore_index,
                                   const Tensor& total_weight,
                                   Tensor& out) {
  if (logits.numel() == 0) return out;
  const auto [ignored, columns, weights] =
      targets_of(target, weight, ignore_index, log_sum_exp.scalar_type());
  Tensor factors = weights * grad;
  if (reduction == kMeanOfRows)  // for no rows the gradient is 0, not 0 / 0
    factors.div_(total_weight).masked_fill_(ignored, 0);
  const Gradient gradient{
      logits, log_sum_exp.unsqueeze(1), columns.unsqueeze(1), factors.unsqueeze(1), out};
  if (logits.is_cpu())
    write_on_processor(gradient);
  else
    write_on_gpu(gradient);
  return out;
}

Tensor cross_entropy_backward(const Tensor& logits,
                              const Tensor& log_sum_exp,
                              const Tensor& grad,
                              const Tensor& target,
                              const OptionalTensor& weight,
                              int64_t reduction,
                              int64_t ignore_index,
                              const Tensor& total_weight) {
  Tensor out = at::empty_like(logits, at::MemoryFormat::Contiguous);
  return cross_entropy_backward_out(
      logits, log_sum_exp, grad, target, weight, reduction, ignore_index, total_weight, out);
}

}  // namespace medley
