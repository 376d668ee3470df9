#pragma once

// Our own ops, as PyTorch schemas: `medley/executor` registers them under these strings, capture
// writes and localizers emit them. In a graph "medley::mean" is called "medley.mean.default". Knows
// nothing of how they are computed.
//
// Factories in a local graph (aten.zeros, aten.full, aten.arange, ...) name no device: the executor
// uses its own. Every size in a local graph is that of the shard; none is -1.

#include <string_view>

namespace medley {

// Written by capture. A later localize() changes only their sizes, origins and offsets.
//
// attention     q [b, g*r, s, d], k [b, g, t, d], v [b, g, t, e], bias broadcast to [b, g*r, s, t],
//               added to the scores -> out [b, g*r, s, e], logsumexp f32 [b, g*r, s]. Query head i
//               uses key head i / r. causal: query i sees keys j <= i + t - s.
// dropout       keep element e if philox(rng[0], rng[1], site, e) says so, then divide by 1 - p.
//               The tensor is the box of `sizes` at `origin` in `full` (equal ranks; the rank may
//               exceed the tensor's: dims are factored): element i of the flat local tensor is the
//               multi-index of i in `sizes`, plus `origin`, flattened in `full`.
// random        numbers of a distribution, "uniform" in [0, 1) or "normal", for each element e a
//               function of rng, site and e, with e as for dropout. `shape` is the local one.
// `mean_loss`   sum / weight; backward: grad / weight.
// `loss_scale`  the gradient of the loss itself; marks where planning may scale it.
// `experts`     x [n, h], indices i64 [n, k] of experts, weights [n, k], gate_up [E, c*f, h], down
//               [E, o, f] -> [n, o]: sum over k of weights[., k] * down[i] @ hidden. `c = 2`:
//               hidden = act(gate) * up, gate the first f rows of gate_up[i], up the others; c = 1:
//               hidden = act(gate_up[i] @ x). An index outside [offset, offset + E) adds zero.
//               `experts`: E of all devices, by which the work is estimated. `backward` -> d x, d
//               weights, d gate_up, d down.
// contract      x [.., k], w [k, n] -> [.., n].
// dequantize_4bit  packed u8 [n, e / 2], absmax f32 [n], code f32 [16] -> [n, e]: each block of e
//                values is code[4 bits] * absmax, the upper 4 bits of a byte first.
inline constexpr std::string_view kCapturedOps[] = {
    "medley::attention(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, float scale)"
    " -> (Tensor, Tensor)",
    "medley::attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? bias,"
    " Tensor out, Tensor lse, bool causal, float scale) -> (Tensor, Tensor, Tensor)",
    "medley::dropout(Tensor x, Tensor rng, float p, int site, int[] sizes, int[] origin,"
    " int[] full) -> Tensor",
    "medley::dropout_backward(Tensor grad, Tensor rng, float p, int site, int[] sizes,"
    " int[] origin, int[] full) -> Tensor",
    "medley::random(Tensor rng, str distribution, int site, int[] shape, int[] sizes,"
    " int[] origin, int[] full, ScalarType dtype) -> Tensor",
    "medley::mean_loss(Tensor sum, Tensor weight) -> Tensor",
    "medley::mean_loss_backward(Tensor grad, Tensor weight) -> Tensor",
    "medley::loss_scale(Tensor grad) -> Tensor",
    "medley::experts(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, Tensor down,"
    " str activation, int offset, int experts) -> Tensor",
    "medley::experts_backward(Tensor grad, Tensor x, Tensor indices, Tensor weights,"
    " Tensor gate_up, Tensor down, str activation, int offset, int experts)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::contract(Tensor x, Tensor w) -> Tensor",
    "medley::dequantize_4bit(Tensor packed, Tensor absmax, Tensor code, ScalarType dtype) -> "
    "Tensor",
};

// Appended by planning and lowering.
//
// adamw, ...    the ops of update_ops.h; scalars f64[3] or more: learning rate, step (1 at the
//               first), clip scale, by which the gradient is multiplied first. The arithmetic is
//               done in f32 on `master` if there is one, else on `param`. -> the new param,
//               moments, master (undefined without one; kNone in the graph). Functional: operands
//               keep their values unless the executor reuses them.
// sum_squares   f64[], whatever the dtype.
// clip_scale    sum of squares f64[] -> (norm, max_norm / (norm + 1e-6)), both f64[].
// scale_scalars scalars with element 2 replaced by min(1, scale times that). It is 1, or the limit
//               of the step if this is a function of the step; max_norm is then 1.
// `accumulate`  the gradient itself; its slot adds (see program.h).
// accumulate_mean  likewise for gradient / count.
// step_sum      x: of one micro-batch its sum over the step. Planning puts a prologue in its place.
// step_share    x * rows / all: of the rows of a micro-batch, and of the step.
// average       average + weight * (updated - average); in the first step the updated parameter. If
//               the scalars have a share, the weight is 1 - share, in the first step too.
//
// If losses are scaled (update_ops.h), with `first` the scale of the first step:
//
// scale_loss       grad * scale, in the type of grad.
// unscale_squares  sum of squares f64[] / scale^2.
// scaled_step      scalars with the step less the skipped ones, and the clip scale min(1, clip
// times
//                  element 2) / scale, 1 / scale without clipping, or NaN if the norm is not
//                  finite: updates then do nothing.
// next_scale       the new state, from the old one and the sum of squares: half the scale if that
//                  is not finite, twice after so many good steps, both within 2^40 of the first.
inline constexpr std::string_view kUpdateOps[] = {
    "medley::adafactor(Tensor param, Tensor grad, Tensor row_var, Tensor? col_var, Tensor? master,"
    " Tensor scalars, float beta2_decay, float eps1, float eps2, float d, float weight_decay)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor? master,"
    " Tensor scalars, float beta1, float beta2, float eps, float weight_decay)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::adamw(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor? master,"
    " Tensor scalars, float beta1, float beta2, float eps, float weight_decay)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::adamw8(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_scale,"
    " Tensor exp_avg_sq, Tensor exp_avg_sq_scale, Tensor? master, Tensor scalars, float beta1,"
    " float beta2, float eps, float weight_decay)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::lion(Tensor param, Tensor grad, Tensor exp_avg, Tensor? master, Tensor scalars,"
    " float beta1, float beta2, float weight_decay) -> (Tensor, Tensor, Tensor)",
    "medley::muon(Tensor param, Tensor grad, Tensor momentum, Tensor? master, Tensor scalars,"
    " float momentum_factor, float weight_decay, float a, float b, float c, float eps, float steps,"
    " bool nesterov, bool match_adamw) -> (Tensor, Tensor, Tensor)",
    "medley::pointwise0(Tensor param, Tensor grad, Tensor? master, Tensor scalars, str program)"
    " -> (Tensor, Tensor)",
    "medley::pointwise1(Tensor param, Tensor grad, Tensor state0, Tensor? master, Tensor scalars,"
    " str program) -> (Tensor, Tensor, Tensor)",
    "medley::pointwise2(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor? master,"
    " Tensor scalars, str program) -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::pointwise3(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor? master, Tensor scalars, str program) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::pointwise4(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor state3, Tensor? master, Tensor scalars, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::sgd(Tensor param, Tensor grad, Tensor? momentum_buffer, Tensor? master,"
    " Tensor scalars, float momentum, float weight_decay, bool nesterov)"
    " -> (Tensor, Tensor, Tensor)",
    "medley::whole0(Tensor param, Tensor grad, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor)",
    "medley::whole1(Tensor param, Tensor grad, Tensor state0, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor)",
    "medley::whole2(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "medley::whole3(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::whole4(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor state3, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::whole5(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor state3, Tensor state4, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::whole6(Tensor param, Tensor grad, Tensor state0, Tensor state1, Tensor state2,"
    " Tensor state3, Tensor state4, Tensor state5, Tensor? master,"
    " Tensor scalars, float flops, str program)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "medley::sum_squares(Tensor x) -> Tensor",
    "medley::add_n(Tensor[] terms) -> Tensor",
    "medley::clip_scale(Tensor sum_of_squares, float max_norm) -> (Tensor, Tensor)",
    "medley::scale_scalars(Tensor scalars, Tensor scale) -> Tensor",
    "medley::accumulate(Tensor grad) -> Tensor",
    "medley::accumulate_mean(Tensor grad, int count) -> Tensor",
    "medley::step_sum(Tensor x) -> Tensor",
    "medley::step_share(Tensor x, int rows, int all) -> Tensor",
    "medley::average(Tensor average, Tensor updated, Tensor scalars, float weight) -> Tensor",
    "medley::scale_loss(Tensor grad, Tensor state, float first) -> Tensor",
    "medley::unscale_squares(Tensor sum_of_squares, Tensor state, float first) -> Tensor",
    "medley::scaled_step(Tensor scalars, Tensor norm, Tensor clip, Tensor state, float first,"
    " bool clips) -> Tensor",
    "medley::next_scale(Tensor state, Tensor sum_of_squares, int good_steps) -> Tensor",
};

// Written by localize() only, instead of an ATen op whose label is cut.
//
// mean                       sum over dims / divisor; all dims if the list is empty. Replaces
//                            aten.mean.
// arange_shard               1-D, start + step * i for the flat indices i of the box of `sizes` at
//                            `origin` in `full`.
// embedding_select           weight holds the rows [offset, offset + rows): an index outside gives
//                            a row of zeros.
// embedding_backward_select  the gradient of these rows, num_weights of them. padding_idx counts in
//                            the whole table.
// nll_select                 self holds the columns [offset, offset + columns): a target outside
//                            adds 0 to the loss. weight and total_weight are whole. reduction: 0
//                            none, 2 sum.
// nll_backward_select        the gradient of these columns.
inline constexpr std::string_view kLocalOps[] = {
    "medley::mean(Tensor x, int[] dims, bool keepdim, ScalarType? dtype, int divisor) -> Tensor",
    "medley::arange_shard(Scalar start, Scalar step, int[] sizes, int[] origin, int[] full,"
    " ScalarType dtype) -> Tensor",
    "medley::embedding_select(Tensor weight, Tensor indices, int offset) -> Tensor",
    "medley::embedding_backward_select(Tensor grad, Tensor indices, int num_weights,"
    " int padding_idx, bool scale_grad_by_freq, int offset) -> Tensor",
    "medley::nll_select(Tensor self, Tensor target, Tensor? weight, int reduction,"
    " int ignore_index, int offset) -> (Tensor, Tensor)",
    "medley::nll_backward_select(Tensor grad, Tensor self, Tensor target, Tensor? weight,"
    " int reduction, int ignore_index, Tensor total_weight, int offset) -> Tensor",
};

}  // namespace medley
