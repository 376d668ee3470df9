#pragma once

// Kernels of our own ops (schemas in medley/ops/local_ops.h and below), composed of ATen calls if
// PyTorch has no such kernel. All accept operands without elements. Knows nothing of graphs.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace medley {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& q,
                                             const at::Tensor& k,
                                             const at::Tensor& v,
                                             const OptionalTensor& bias,
                                             bool causal,
                                             double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out,
                                                                  const at::Tensor& q,
                                                                  const at::Tensor& k,
                                                                  const at::Tensor& v,
                                                                  const OptionalTensor& bias,
                                                                  const at::Tensor& out,
                                                                  const at::Tensor& lse,
                                                                  bool causal,
                                                                  double scale);

// Like both above, with scores in memory. Used without a fused kernel: on a GPU with a bias, in
// f32, or with values of another width than keys.
std::tuple<at::Tensor, at::Tensor> attention_written_out(const at::Tensor& q,
                                                         const at::Tensor& k,
                                                         const at::Tensor& v,
                                                         const OptionalTensor& bias,
                                                         bool causal,
                                                         double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_written_out(
    const at::Tensor& grad_out,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const OptionalTensor& bias,
    const at::Tensor& out,
    bool causal,
    double scale);

// packed u8 [n, e / 2], absmax f32 [n], code f32 [16] -> [n, e]: each block of e values is code[4
// bits] * absmax, the upper 4 bits of a byte first.
at::Tensor dequantize_4bit(const at::Tensor& packed,
                           const at::Tensor& absmax,
                           const at::Tensor& code,
                           at::ScalarType dtype);

// Forward and backward: element L of the whole tensor is kept if word L % 4 of philox4x32-10 with
// key (low(seed) ^ site, high(seed)) and counter (low(L / 4), high(L / 4), low(step), high(step))
// is at least p * 2^32.
at::Tensor dropout(const at::Tensor& x,
                   const at::Tensor& rng,
                   double p,
                   int64_t site,
                   at::IntArrayRef sizes,
                   at::IntArrayRef origin,
                   at::IntArrayRef full);

// Computes element L of the whole tensor from the words w of philox with block L (key and counter
// as for dropout). u(a, b) is the highest 53 of the 64 bits a + 2^32 * b, over 2^53.
//   "uniform"  in [0, 1): u(w0, w1) for f64. For other types the highest bits of w0, as many as
//              these represent exactly: 24, 11, 8.
//   "normal"   sqrt(-2 log(1 - u(w0, w1))) * cos(2 pi u(w2, w3)), in f64 and then rounded.
// `sizes` empty: the whole tensor of this shape.
at::Tensor random(const at::Tensor& rng,
                  std::string_view distribution,
                  int64_t site,
                  at::IntArrayRef shape,
                  at::IntArrayRef sizes,
                  at::IntArrayRef origin,
                  at::IntArrayRef full,
                  at::ScalarType dtype);

at::Tensor mean_loss(const at::Tensor& sum, const at::Tensor& weight);

at::Tensor same_gradient(const at::Tensor& grad);
at::Tensor scale_loss(const at::Tensor& grad, const at::Tensor& state, double first);
at::Tensor unscale_squares(const at::Tensor& sum_of_squares, const at::Tensor& state, double first);
at::Tensor scaled_step(const at::Tensor& scalars,
                       const at::Tensor& norm,
                       const at::Tensor& clip,
                       const at::Tensor& state,
                       double first,
                       bool clips);
at::Tensor next_scale(const at::Tensor& state,
                      const at::Tensor& sum_of_squares,
                      int64_t good_steps);

at::Tensor experts(const at::Tensor& x,
                   const at::Tensor& indices,
                   const at::Tensor& weights,
                   const at::Tensor& gate_up,
                   const at::Tensor& down,
                   std::string_view activation,
                   int64_t offset,
                   int64_t experts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> experts_backward(
    const at::Tensor& grad,
    const at::Tensor& x,
    const at::Tensor& indices,
    const at::Tensor& weights,
    const at::Tensor& gate_up,
    const at::Tensor& down,
    std::string_view activation,
    int64_t offset,
    int64_t experts);

at::Tensor contract(const at::Tensor& x, const at::Tensor& w);
at::Tensor contract_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias);

at::Tensor sum_squares(const at::Tensor& x);
at::Tensor add_n(at::TensorList terms);
std::tuple<at::Tensor, at::Tensor> clip_scale(const at::Tensor& sum_of_squares, double max_norm);
at::Tensor scale_scalars(const at::Tensor& scalars, const at::Tensor& scale);
at::Tensor accumulate(const at::Tensor& grad);
at::Tensor accumulate_mean(const at::Tensor& grad, int64_t count);
at::Tensor step_sum(const at::Tensor& x);
at::Tensor step_share(const at::Tensor& x, int64_t rows, int64_t all);
at::Tensor average(const at::Tensor& average,
                   const at::Tensor& updated,
                   const at::Tensor& scalars,
                   double weight);

at::Tensor mean(const at::Tensor& x,
                at::IntArrayRef dims,
                bool keepdim,
                std::optional<at::ScalarType> dtype,
                int64_t divisor);
at::Tensor arange_shard(const at::Scalar& start,
                        const at::Scalar& step,
                        at::IntArrayRef sizes,
                        at::IntArrayRef origin,
                        at::IntArrayRef full,
                        at::ScalarType dtype);
at::Tensor embedding_select(const at::Tensor& weight, const at::Tensor& indices, int64_t offset);
at::Tensor embedding_backward_select(const at::Tensor& grad,
                                     const at::Tensor& indices,
                                     int64_t num_weights,
                                     int64_t padding_idx,
                                     bool scale_grad_by_freq,
                                     int64_t offset);
std::tuple<at::Tensor, at::Tensor> nll_select(const at::Tensor& self,
                                              const at::Tensor& target,
                                              const OptionalTensor& weight,
                                              int64_t reduction,
                                              int64_t ignore_index,
                                              int64_t offset);
at::Tensor nll_backward_select(const at::Tensor& grad,
                               const at::Tensor& self,
                               const at::Tensor& target,
                               const OptionalTensor& weight,
                               int64_t reduction,
                               int64_t ignore_index,
                               const at::Tensor& total_weight,
                               int64_t offset);

// Takes logits [n, classes] instead of log-probabilities. log_sum_exp is [n], in the compute type:
// f64 for f64 logits, else f32. The loss and its gradient are those of nll_loss of log_softmax. The
// gradient has the logits' type and may take their place.
at::Tensor log_sum_exp(const at::Tensor& logits);
std::tuple<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& logits,
                                                 const at::Tensor& log_sum_exp,
                                                 const at::Tensor& target,
                                                 const OptionalTensor& weight,
                                                 int64_t reduction,
                                                 int64_t ignore_index);
at::Tensor cross_entropy_backward(const at::Tensor& logits,
                                  const at::Tensor& log_sum_exp,
                                  const at::Tensor& grad,
                                  const at::Tensor& target,
                                  const OptionalTensor& weight,
                                  int64_t reduction,
                                  int64_t ignore_index,
                                  const at::Tensor& total_weight);
at::Tensor& cross_entropy_backward_out(const at::Tensor& logits,
                                       const at::Tensor& log_sum_exp,
                                       const at::Tensor& grad,
                                       const at::Tensor& target,
                                       const OptionalTensor& weight,
                                       int64_t reduction,
                                       int64_t ignore_index,
                                       const at::Tensor& total_weight,
                                       at::Tensor& out);

// Ops around communications. `x` is seen as [pre, size, post].
//
//   `pack`        the concatenation over j of the flat x[:, offset_j : offset_j + lengths_j, :].
//   `unpack`      its inverse, viewed as `shape`.
//   `take`        x[:, offset : offset + length, :], viewed as `shape`.
//   `place`       puts x of [pre, length, post] into a tensor of `shape` full of `fill`.
//   `keep_first`  x on device 0 of a group, zeros elsewhere: a partial sum of a replicated value.
at::Tensor pack(const at::Tensor& x, int64_t pre, at::IntArrayRef lengths, int64_t post);
at::Tensor unpack(const at::Tensor& flat,
                  int64_t pre,
                  at::IntArrayRef lengths,
                  int64_t post,
                  at::IntArrayRef shape);
at::Tensor take(const at::Tensor& x,
                int64_t pre,
                int64_t size,
                int64_t post,
                int64_t offset,
                int64_t length,
                at::IntArrayRef shape);
at::Tensor place(const at::Tensor& x,
                 int64_t pre,
                 int64_t size,
                 int64_t post,
                 int64_t offset,
                 int64_t length,
                 at::IntArrayRef shape,
                 double fill);
at::Tensor keep_first(const at::Tensor& x, int64_t me);
at::Tensor scaled_sum(const at::Tensor& sum, double factor);
// Expands the vector along dim 1 of a tensor of `shape`: the result of a convolution over no
// channels.
at::Tensor expand_channels(const at::Tensor& bias, at::IntArrayRef shape);
// Returns the gradients of a convolution with an empty input or weight: zeros, and that of the
// bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_empty(const at::Tensor& grad,
                                                                          at::IntArrayRef input,
                                                                          at::IntArrayRef weight);

}  // namespace medley
