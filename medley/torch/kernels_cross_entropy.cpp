// The cross entropy of rows of logits. Probabilities are there for a block of rows at a time only.

#include <ATen/Context.h>
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
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>

#include "medley/torch/kernels.h"

namespace medley {
namespace {

using at::Tensor;

constexpr int64_t kNoReduction = 0, kMeanOfRows = 1;  // at::Reduction

at::ScalarType type_inside(const Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Blocks of rows that stay in a cache, that of a core for each thread or that of a GPU, and are
// little beside the logits; but a block is worth its launches.
class RowBlocks {
 public:
  explicit RowBlocks(const Tensor& logits) : rows_(logits.size(0)) {
    const int64_t size = type_inside(logits) == at::kDouble ? 8 : 4;
    const int64_t least = logits.is_cpu() ? 64 << 10 : 4 << 20;
    const int64_t most = logits.is_cpu() ? (512 << 10) * at::get_num_threads() : 32 << 20;
    const int64_t bytes = std::clamp(logits.numel() * size / 16, least, most);
    const int64_t of_row = std::max<int64_t>(logits.size(1) * size, 1);
    most_ = std::clamp<int64_t>(bytes / of_row, 1, std::max<int64_t>(rows_, 1));
  }
  int64_t most() const { return most_; }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (int64_t first = 0; first < rows_; first += most_)
      visit(first, std::min(most_, rows_ - first));
  }

 private:
  int64_t rows_, most_ = 1;
};

Tensor block_of_work(const Tensor& logits, const RowBlocks& blocks) {
  return at::empty({blocks.most(), logits.size(1)}, logits.options().dtype(type_inside(logits)));
}

// to = x - by, where a processor would copy x whole before it takes two types at once.
void subtract(Tensor& to, const Tensor& x, const Tensor& by) {
  if (x.is_cpu() && x.scalar_type() != to.scalar_type())
    to.copy_(x).sub_(by);
  else
    at::sub_out(to, x, by);
}

// Of every target a column that there is, and its weight: 0 where it is ignored.
struct Targets {
  Tensor columns, weights;  // [n]
};
Targets targets_of(const Tensor& target,
                   const OptionalTensor& weight,
                   int64_t ignore_index,
                   at::ScalarType type) {
  const Tensor ignored = target.eq(ignore_index);
  Tensor columns = target.masked_fill(ignored, 0);
  Tensor weights = weight ? weight->index_select(0, columns).to(type).masked_fill_(ignored, 0)
                          : ignored.logical_not().to(type);
  return {std::move(columns), std::move(weights)};
}

}  // namespace

Tensor log_sum_exp(const Tensor& logits) {
  const RowBlocks blocks(logits);
  Tensor result = at::empty({logits.size(0)}, logits.options().dtype(type_inside(logits)));
  if (logits.numel() == 0) return result.zero_();
  const Tensor block = block_of_work(logits, blocks);
  Tensor largest, column;  // on a GPU, where few rows are slow to look through
  if (!logits.is_cpu()) std::tie(largest, column) = at::max(logits, 1, true);
  blocks.for_each([&](int64_t first, int64_t rows) {
    const Tensor x = logits.narrow(0, first, rows);
    Tensor work = block.narrow(0, 0, rows), part = result.narrow(0, first, rows);
    // One kernel has exponentials and their sum in one pass; of the largest logit it gives the
    // logarithm of the sum.
    const Tensor from = x.scalar_type() == work.scalar_type() ? x : work.copy_(x);
    if (logits.is_cpu()) {
      const Tensor most = at::amax(from, {1});
      at::_log_softmax_out(work, from, 1, false);
      at::sub_out(part, most, at::amax(work, {1}));
    } else {
      at::_log_softmax_out(work, from, 1, false);
      part.copy_(work.gather(1, column.narrow(0, first, rows)).squeeze(1));
    }
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
  const auto [columns, weights] =
      targets_of(target, weight, ignore_index, log_sum_exp.scalar_type());
  const Tensor taken = logits.gather(1, columns.unsqueeze(1)).squeeze(1);
  // Not 0 times what may be infinite.
  const Tensor losses =
      (log_sum_exp - taken).mul_(weights).masked_fill_(target.eq(ignore_index), 0);
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
  const auto type = type_inside(logits);
  const auto [columns, weights] = targets_of(target, weight, ignore_index, type);
  Tensor factors = weights * grad;
  if (reduction == kMeanOfRows)  // of no rows at all the gradient is 0, and not 0 / 0
    factors.div_(total_weight).masked_fill_(target.eq(ignore_index), 0);
  const RowBlocks blocks(logits);
  const bool apart = logits.scalar_type() != type;
  const Tensor work = apart ? block_of_work(logits, blocks) : Tensor();
  // The gradient of log-probabilities, which a processor's kernel takes: zeros, but for the column
  // of each target.
  const Tensor picks = logits.is_cpu() ? block_of_work(logits, blocks).zero_() : Tensor();
  const Tensor of_targets = -factors;
  Tensor at_targets;
  if (!logits.is_cpu()) {  // before the gradient takes the place of the logits
    at_targets = logits.gather(1, columns.unsqueeze(1)).to(type).sub_(log_sum_exp.unsqueeze(1));
    at_targets = at_targets.expm1_().mul_(factors.unsqueeze(1)).to(logits.scalar_type());
  }
  blocks.for_each([&](int64_t first, int64_t rows) {
    const auto of_rows = [&](const Tensor& x) { return x.narrow(0, first, rows).unsqueeze(1); };
    Tensor to = out.narrow(0, first, rows);
    Tensor each = apart ? work.narrow(0, 0, rows) : to;
    subtract(each, logits.narrow(0, first, rows), of_rows(log_sum_exp));
    if (logits.is_cpu()) {
      Tensor picked = picks.narrow(0, 0, rows);
      picked.scatter_(1, of_rows(columns), of_rows(of_targets));
      at::_log_softmax_backward_data_out(each, picked, each, 1, type);
      picked.scatter_(1, of_rows(columns), 0);
      if (apart) to.copy_(each);
      return;
    }
    // factor * exp(each), of what is not above 0, in one kernel.
    at::elu_backward_out(to, of_rows(factors), 1, 1, 1, false, each);
  });
  if (!logits.is_cpu()) out.scatter_(1, columns.unsqueeze(1), at_targets);
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
