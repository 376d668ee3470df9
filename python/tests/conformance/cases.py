"""Every op with concrete arguments, one case per line. A rule without a case fails the test.

A case is an op in graph format, with tensors as values and without trailing defaults:

    aten.mm.default(f64[b, (2 3)], f64[6, 5])

`b` is the batch. A dim `(2 3)` of 6 is also cut at its factors 2 and 3, as after a view. Factors of
the first result follow an arrow. After a tensor, `<9` draws numbers below 9, `~9` distinct ones
along the last dim, `>0` positive numbers, and `=0` makes it the result of an op that fills zeros.
"""

UNARY = """abs alias bitwise_not:i64 ceil clone contiguous cos detach erf exp exp2 expm1 floor gelu
hardsigmoid hardswish hardtanh isinf isnan leaky_relu lift_fresh_copy log:+ log1p:+ log2:+
logical_not elu mish nan_to_num neg reciprocal:+ relu round rsqrt:+ sgn sigmoid sign silu sin
softplus sqrt:+ tanh trunc tan atan sinh cosh asinh erfc frac digamma:+ lgamma:+ sinc celu acos asin
acosh atanh erfinv"""
BINARY_BACKWARD = "silu tanh sigmoid mish hardswish hardsigmoid gelu"
BINARY = """aten.atan2.default aten.maximum.default aten.minimum.default aten.logical_and.default
aten.logical_or.default aten.logical_xor.default aten.div.Tensor aten.mul.Tensor aten.add.Tensor
aten.sub.Tensor aten.clamp_min.Tensor aten.clamp_max.Tensor aten.fmod.Tensor aten.remainder.Tensor
aten.pow.Tensor_Tensor:+ aten.fmin.default aten.fmax.default aten.hypot.default
aten.logaddexp.default aten.logaddexp2.default aten.xlogy.Tensor"""
INTEGERS = "eq ne ge gt le lt bitwise_and bitwise_or bitwise_xor"
SCALAR = "add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar fmod.Scalar remainder.Scalar"


def _unary(word: str) -> str:
    name, _, kind = word.partition(":")
    tensor = {"": "f64[b, (2 3)]", "+": "f64[b, (2 3)]>0", "i64": "i64[b, 6]<9"}[kind]
    return f"aten.{name}.default({tensor})"


def _binary(word: str) -> str:
    name, _, kind = word.partition(":")
    positive = ">0" if kind else ""
    return f"{name}(f64[b, 5, (2 2)]{positive}, f64[5, 4]>0)"


POINTWISE = [
    *map(_unary, UNARY.split()),
    *map(_binary, BINARY.split()),
    *[f"aten.{op}_backward.default(f64[b, 6], f64[b, (2 3)])" for op in BINARY_BACKWARD.split()],
    *[f"aten.{op}.Tensor(i64[b, 5]<4, i64[1, 5]<4)" for op in INTEGERS.split()],
    *[f"aten.{op}.Scalar(i64[b, (2 3)]<4, 2)" for op in INTEGERS.split()],
    *[f"aten.{op}(f64[b, 5], 0.7)" for op in SCALAR.split()],
    "aten.add.Tensor(f64[b, 6], f64[b, 6], 2)",
    "aten.add.Tensor(f64[b, 1, 6], f64[5, 1])",
    "aten.add.Tensor(f64[b, 6], f64[])",
    "aten.add.Tensor(f64[b, 6], 0.5)",
    "aten.add.Tensor(f64[b, 6], 0)",
    "aten.sub.Tensor(f64[5, 6], f64[b, 5, 6], 0.5)",
    "aten.mul.Tensor(f64[b, 5], f64[])",
    "aten.mul.Tensor(f64[1, 5], f64[b, 1])",
    "aten.mul.Tensor(f64[b, 5], 3)",
    "aten.mul.Tensor(bool[b, 5], bool[b, 5])",
    "aten.div.Tensor(f64[], f64[b, 5]>0)",
    "aten.div.Tensor_mode(f64[b, 5], f64[5]>0, 'floor')",
    "aten.div.Scalar_mode(f64[b, 5], 0.7, 'trunc')",
    "aten.floor_divide.default(i64[b, 5]<40, i64[b, 1]>0)",
    "aten._to_copy.default(f64[b, 6], f32)",
    "aten._to_copy.default(f64[b, 6], f64)",
    "aten._to_copy.default(i64[b, 6]<9, f64)",
    "aten._to_copy.default(f64[b, 6], i64)",
    "aten._to_copy.default(bool[b, 6], f64)",
    "aten._to_copy.default(i64[b, 6]<9, bf16)",
    "aten.add.Tensor(f32[b, 6], bf16[b, 6])",
    "aten.copy.default(f64[b, 6], f64[b, 6])",
    "aten.copy.default(f32[b, 6], f64[b, 6])",
    "aten.pow.Tensor_Scalar(f64[b, 6]>0, 2.5)",
    "aten.pow.Tensor_Scalar(f64[b, 6], 1)",
    "aten.pow.Scalar(2.0, f64[b, 6])",
    "aten.masked_fill.Scalar(f64[b, 6], bool[b, 6], 0)",
    "aten.masked_fill.Scalar(f64[b, 6, 5], bool[6, 1], 2.5)",
    "aten.masked_fill.Scalar(f64[6], bool[b, 6], 0.0)",
    "aten.masked_fill.Tensor(f64[b, 6], bool[6], f64[])",
    "aten.where.self(bool[b, 6], f64[b, 6], f64[b, 6])",
    "aten.where.self(bool[b, 1], f64[6], f64[])",
    "aten.where.ScalarOther(bool[b, 6], f64[b, 6], 0)",
    "aten.where.ScalarOther(bool[b, 6], f64[6], 1.5)",
    "aten.addcmul.default(f64[b, 6], f64[b, 6], f64[6], 0.5)",
    "aten.addcmul.default(f64[6], f64[b, 1], f64[b, 6])",
    "aten.addcdiv.default(f64[b, 6], f64[b, 6], f64[6]>0, 0.5)",
    "aten.lerp.Scalar(f64[b, 6], f64[6], 0.3)",
    "aten.lerp.Tensor(f64[b, 6], f64[6], f64[b, 1])",
    "aten.threshold.default(f64[b, 6], 0.1, -1.0)",
    "aten.logit.default(f64[b, 6], 0.1)",
    "aten.logit_backward.default(f64[b, 6], f64[b, 6], 0.1)",
    "aten._prelu_kernel.default(f64[b, 6, 5], f64[6, 1])",
    "aten._prelu_kernel_backward.default(f64[b, 6], f64[b, 6], f64[6])",
    "aten.log_sigmoid_forward.default(f64[b, 6])",
    "aten.threshold_backward.default(f64[b, 6], f64[b, 6], 0)",
    "aten.gelu.default(f64[b, 6], 'tanh')",
    "aten.gelu_backward.default(f64[b, 6], f64[b, 6], 'tanh')",
    "aten.elu_backward.default(f64[b, 6], 1.0, 1.0, 1.0, false, f64[b, 6])",
    "aten.leaky_relu_backward.default(f64[b, 6], f64[b, 6], 0.1, false)",
    "aten.rrelu_with_noise_backward.default(f64[b, 6], f64[b, 6], f64[b, 6], 0.1, 0.3, true,"
    " false)",
    "aten.native_dropout_backward.default(f64[b, 6], bool[b, 6], 1.5)",
    "aten.hardtanh_backward.default(f64[b, 6], f64[b, 6], -0.5, 0.5)",
    "aten.softplus_backward.default(f64[b, 6], f64[b, 6], 1.0, 20.0)",
    "aten.log_sigmoid_backward.default(f64[b, 6], f64[b, 6], f64[b, 6]>0)",
    "aten.clamp.default(f64[b, 5], -0.5, 0.5)",
    "aten.clamp.Tensor(f64[b, 5], none, f64[5])",
    "aten.clamp.Tensor(f64[b, 5], f64[b, 1], f64[5]>0)",
    "aten.clamp_min.default(f64[b, 5], 0)",
    "aten.clamp_max.default(f64[b, 5], 0)",
]

LINALG = [
    "aten._linalg_eigh.default(f64[b, 3, 3], 'L', true)",
    "aten._linalg_svd.default(f64[b, 3, 4], false, true)",
    "aten._linalg_solve_ex.default(f64[b, 3, 3], f64[b, 3, 4])",
    "aten.linalg_lu_solve.default(f64[b, 3, 3], i32[b, 3]>0, f64[b, 3, 4])",
    "aten.linalg_solve_triangular.default(f64[b, 3, 3], f64[b, 3, 4], true)",
    "aten.linalg_cholesky_ex.default(f64[b, 1, 1]>0)",
    "aten.linalg_inv_ex.default(f64[b, 3, 3])",
    "aten.linalg_matrix_exp.default(f64[b, 3, 3])",
    "aten.linalg_qr.default(f64[b, 4, 3])",
    "aten._cdist_forward.default(f64[b, 4, 3], f64[b, 5, 3], 2.0, none)",
    "aten._cdist_backward.default(f64[b, 4, 5], f64[b, 4, 3], f64[b, 5, 3], 2.0, f64[b, 4, 5]>0)",
    "aten._euclidean_dist.default(f64[b, 4, 3], f64[5, 3])",
]

CONTRACTION = [
    "aten.mm.default(f64[b, (2 3)], f64[6, 5])",
    "aten.mm.default(f64[5, b], f64[b, 7])",
    "aten.mm.default(f64[(2 2), 1], f64[1, (3 2)])",
    "aten.bmm.default(f64[b, 5, 6], f64[b, 6, 4])",
    "aten.bmm.default(f64[(2 3), 1, 5], f64[6, 5, b])",
    "aten.mv.default(f64[b, 6], f64[(3 2)])",
    "aten.dot.default(f64[b], f64[b])",
    "aten.addmm.default(f64[5], f64[b, 6], f64[6, 5])",
    "aten.addmm.default(f64[b, 5], f64[b, (2 3)], f64[6, 5])",
    "aten.addmm.default(f64[1, 5], f64[b, 6], f64[6, 5], 2, 0.5)",
    "aten.baddbmm.default(f64[b, 1, 5], f64[b, 4, 6], f64[b, 6, 5])",
    "aten.baddbmm.default(f64[b, 4, 5], f64[b, 4, 6], f64[b, 6, 5], 0, 0.5)",
    "medley.contract.default(f64[b, 5, (3 2)], f64[6, (2 2)])",
    "medley.contract.default(f64[6], f64[6, 5])",
    "medley.dequantize_4bit.default(u8[(2 3), 4]<256, f32[6], f32[16], f64)",
    "medley.dequantize_4bit.default(u8[6, 32]<256, f32[6], f32[16], bf16)",
]

LAYOUT = [
    "aten.view.default(f64[b, 15], [b, 3, 5])",
    "aten.view.default(f64[b, 4, 6], [b*4, 6])",
    "aten.view.default(f64[b*4, 6], [b, 4, 6])",
    "aten.view.default(f64[5, b], [5, b, 1])",
    "aten.view.default(f64[b, 5, 30], [b, 5, 3, 2, 5])",
    "aten.view.default(f64[b, 5, 3, 2, 5], [b*5, 30])",
    "aten.view.default(f64[6, 4], [4, 6])",
    "aten.view.default(f64[b, 6, 4], [b, 8, 3])",
    "aten.view.default(f64[b, 6, 5], [b, 10, 3])",
    "aten.view.default(f64[b, (3 4), 5], [b, 60])",
    "aten.view.default(f64[1, b, 1, 6], [b, 6, 1])",
    "aten.view.default(f64[1], sizes[])",
    "aten.view.default(f64[5, b], [b*5])",
    "aten.view.default(f64[b*30], [b, 5, 6])",
    "aten.view.default(f64[4, b, 6], [4, b*6])",
    "aten.view.default(f64[b, 5, (2 3)], [b*30])",
    "aten.reshape.default(f64[b, 6], [b*3, 2])",
    "aten._unsafe_view.default(f64[b*5, 12], [b, 5, 12])",
    "aten._unsafe_view.default(f64[b, 5, (3 4)], [b*5, 12])",
    "aten.t.default(f64[b, (2 3)])",
    "aten.t.default(f64[6])",
    "aten.transpose.int(f64[b, 5, 4, 3], 1, 2)",
    "aten.transpose.int(f64[b, 5, (2 3)], -1, 0)",
    "aten.permute.default(f64[b, 5, 1, 6], [3, 0, -2, 1])",
    "aten.permute.default(f64[b, 5, 3, 2, 4], [2, 0, 3, 1, 4])",
    "aten.unsqueeze.default(f64[b, 5], 1)",
    "aten.unsqueeze.default(f64[b, 5], -1)",
    "aten.squeeze.default(f64[1, b, 1, 5])",
    "aten.squeeze.dim(f64[b, 1, 5], 1)",
    "aten.squeeze.dim(f64[b, 1, 5], 2)",
    "aten.squeeze.dims(f64[1, b, 1, 5], [0, 2])",
    "aten.expand.default(f64[5, 1], [b, 5, 6])",
    "aten.expand.default(f64[], [b, 6])",
    "aten.expand.default(f64[b, 1], [b, 12]) -> [b, (3 4)]",
    "aten.expand.default(f64[b, 1, 6], [b, 4, 6])",
    "aten.expand.default(f64[b, 3, 1, 5, 2], [b, 3, 2, 5, 2])",
    "aten.repeat.default(f64[b, 6], [1, 2])",
    "aten.repeat.default(f64[5], [b, 3])",
    "aten.repeat.default(f64[4, 3], [b, 2])",
    "aten.repeat.default(f64[1, 6], [b, 1, 1])",
]

SLICING = [
    "aten.slice.Tensor(f64[b, 6], 1, 2, 5)",
    "aten.slice.Tensor(f64[b, 6, 5], 1, 0, 9223372036854775807)",
    "aten.slice.Tensor(f64[b, 6, 5], 0, 0, b)",
    "aten.slice.Tensor(f64[b, 6], -1, 0, 6, 2)",
    "aten.slice.Tensor(f64[b, 6], 1, -2)",
    "aten.slice_backward.default(f64[b, 3], [b, 6], 1, 2, 5, 1)",
    "aten.slice_backward.default(f64[b, 6], [b, 6], 1, 0, 9223372036854775807, 1)",
    "aten.slice_backward.default(f64[b, 6], [b, 6], 0, 0, b, 1)",
    "aten.slice_scatter.default(f64[b, 6], f64[b, 3], 1, 2, 5)",
    "aten.slice_scatter.default(f64[b, 6], f64[b, 6], 1, 0, 6)",
    "aten.constant_pad_nd.default(f64[b, 6], [1, 2])",
    "aten.constant_pad_nd.default(f64[b, 6, 5], [0, 0, 1, 0], 2.5)",
    "aten.constant_pad_nd.default(f64[b, 6], [0, -1])",
    "aten.select.int(f64[b, 6, 5], 1, 2)",
    "aten.select.int(f64[b, 6], 0, 2)",
    "aten.select.int(f64[b, (2 3), 5], -1, -1)",
    "aten.select_backward.default(f64[b, 5], [b, 6, 5], 1, 2)",
    "aten.select_backward.default(f64[b, 6], [b, 6, 5], -1, -2)",
    "aten.select_scatter.default(f64[b, 6, 5], f64[b, 5], 1, 2)",
    "aten.split.Tensor(f64[b, 6], 2, 1)",
    "aten.split.Tensor(f64[b, 5, 12], 4, -1)",
    "aten.split.Tensor(f64[b, 7], 3, 1)",
    "aten.split_with_sizes.default(f64[b, 6], [2, 2, 2], 1)",
    "aten.split_with_sizes.default(f64[b, 6], [1, 3, 2], 1)",
    "aten.unsafe_split.Tensor(f64[b, 6], 2, 1)",
    "aten.unsafe_split_with_sizes.default(f64[b, 6], [1, 3, 2], 1)",
    "aten.unbind.int(f64[3, b, 5], 0)",
    "aten.unbind.int(f64[b, 5, (3 2), 2], -1)",
    "aten.cat.default([f64[b, 3], f64[b, 3]], 1)",
    "aten.cat.default([f64[b, 5, 4], f64[b, 5, 4], f64[b, 5, 4]], -1)",
    "aten.cat.default([f64[b, 3], f64[b, 4], f64[b, 1]], 1)",
    "aten.cat.default([f64[0], f64[b, 5]], 1)",
    "aten.cat.default([f64[b, 5], f64[b, 5]], 0)",
    "aten.stack.default([f64[b, 5], f64[b, 5], f64[b, 5]], 0)",
    "aten.stack.default([f64[b, (2 3)], f64[b, 6]], -1)",
    "aten.tril.default(f64[b, 5, 5])",
    "aten.triu.default(f64[b, 5, 7], 1)",
    "aten.flip.default(f64[b, 6, 5], [1])",
    "aten.roll.default(f64[b, 6, 5], [2], [-1])",
    "aten.rot90.default(f64[b, 4, 3], 1, [1, 2])",
    "aten.glu.default(f64[b, 6, 5], 1)",
    "aten.glu_backward.default(f64[b, 3, 5], f64[b, 6, 5], 1)",
    "aten.unfold.default(f64[b, 6, 5], 1, 3, 1)",
    "aten.unfold_backward.default(f64[b, 4, 5, 3], [b, 6, 5], 1, 3, 1)",
    "aten.diagonal.default(f64[b, 4, 5, 4], 1, 1, 3)",
    "aten.diagonal_backward.default(f64[b, 5, 3], [b, 4, 5, 4], 1, 1, 3)",
    "aten.diag_embed.default(f64[b, 5], 0, -2, -1)",
    "aten.diagonal_scatter.default(f64[b, 4, 4], f64[b, 4], 0, -2, -1)",
]

NORMALISATION = [
    "aten._softmax.default(f64[b, 5, 6], -1, false)",
    "aten._softmax.default(f64[b, (2 3)], 0, false)",
    "aten._log_softmax.default(f64[b, (2 3)], 1, false)",
    "aten._softmax.default(bf16[b, 5, 6], -1, false)",
    "aten._log_softmax.default(f32[b, 6], 1, false)",
    "aten._softmax_backward_data.default(f64[b, 6], f64[b, 6], -1, f64)",
    "aten._log_softmax_backward_data.default(f64[b, 5, 6], f64[b, 5, 6], 2, f64)",
    "aten._softmax_backward_data.default(bf16[b, 6], bf16[b, 6], -1, bf16)",
    "aten.native_layer_norm.default(f64[b, 5, 6], [6], f64[6], f64[6], 1e-05)",
    "aten.native_layer_norm.default(f64[b, 5, 6], [5, 6], none, none, 1e-05)",
    "aten.native_layer_norm_backward.default(f64[b, 5, 6], f64[b, 5, 6], [6], f64[b, 5, 1],"
    " f64[b, 5, 1]>0, f64[6], f64[6], [true, true, true])",
    "aten.native_layer_norm_backward.default(f64[b, 5, 6], f64[b, 5, 6], [5, 6], f64[b, 1, 1],"
    " f64[b, 1, 1]>0, none, none, [true, false, false])",
    "aten.native_layer_norm_backward.default(f64[b, 6], f64[b, 6], [6], f64[b, 1],"
    " f64[b, 1]>0, f64[6], f64[6], [false, true, true])",
    "aten._fused_rms_norm.default(f64[b, 5, 6], [6], f64[6], 1e-05)",
    "aten._native_batch_norm_legit.no_stats(f64[b, 6, 3], f64[6], f64[6], true, 0.1, 1e-05)",
    "aten._native_batch_norm_legit_no_training.default(f64[b, 6, 3], f64[6], f64[6], f64[6],"
    " f64[6]>0, 0.1, 1e-05)",
    "aten._native_batch_norm_legit_functional.default(f64[b, 6, 3, 2], f64[6], f64[6], f64[6],"
    " f64[6]>0, true, 0.1, 1e-05)",
    "aten._native_batch_norm_legit_functional.default(f64[b, 6], none, none, f64[6],"
    " f64[6]>0, true, 0.3, 1e-05)",
    "aten._native_batch_norm_legit_functional.default(f64[b, 6, 3], f64[6], f64[6], f64[6],"
    " f64[6]>0, false, 0.1, 1e-05)",
    "aten._native_batch_norm_legit_functional.default(bf16[b, 6, 3], f32[6], f32[6], f32[6],"
    " f32[6]>0, true, 0.1, 1e-05)",
    "aten.native_batch_norm_backward.default(f64[b, 6, 3, 2], f64[b, 6, 3, 2], f64[6], f64[6],"
    " f64[6]>0, f64[6], f64[6]>0, true, 1e-05, [true, true, true])",
    "aten.native_batch_norm_backward.default(bf16[b, 6, 3], bf16[b, 6, 3], f32[6], f32[6],"
    " f32[6]>0, f32[6], f32[6]>0, true, 1e-05, [true, true, true])",
    "aten.native_batch_norm_backward.default(f64[b, 6], f64[b, 6], none, f64[6],"
    " f64[6]>0, f64[6], f64[6]>0, true, 1e-05, [true, false, false])",
    "aten.native_batch_norm_backward.default(f64[b, 6, 3], f64[b, 6, 3], f64[6], f64[6],"
    " f64[6]>0, f64[0], f64[0], false, 1e-05, [true, true, true])",
    "aten.native_group_norm.default(f64[b, 6, 4, 5], f64[6], f64[6], b, 6, 20, 3, 1e-05)",
    "aten.native_group_norm.default(f64[b, 6, 5], none, none, b, 6, 5, 6, 1e-05)",
    "aten.native_group_norm_backward.default(f64[b, 6, 4], f64[b, 6, 4], f64[b, 3], f64[b, 3]>0,"
    " f64[6], b, 6, 4, 3, [true, true, true])",
]

INDEXING = [
    "aten.embedding.default(f64[11, 6], i64[b, 5]<11)",
    "aten.embedding.default(f64[(3 4), 6], i64[b]<12, 3)",
    "aten.embedding_dense_backward.default(f64[b, 5, 6], i64[b, 5]<11, 11, -1, false)",
    "aten.embedding_dense_backward.default(f64[b, 6], i64[b]<11, 11, 4, false)",
    "aten.embedding_dense_backward.default(f64[b, 6], i64[b]<12, 12, 4, false) -> [(3 4), 6]",
    "aten.embedding_dense_backward.default(f64[b, 6], i64[b]<3, 3, -1, true)",
    "aten.nll_loss_forward.default(f64[b, 5], i64[b]<5, none, 2, -100)",
    "aten.nll_loss_forward.default(f64[b, (2 3)], i64[b]<6, f64[6]>0, 2, 3)",
    "aten.nll_loss_forward.default(f64[b, 5], i64[b]<5, none, 0, 2)",
    "aten.nll_loss_forward.default(f64[b, 5], i64[b]<5, none, 1, 2)",
    "aten.nll_loss_backward.default(f64[], f64[b, 5], i64[b]<5, none, 2, -100, f64[]>0)",
    "aten.nll_loss_backward.default(f64[], f64[b, 6], i64[b]<6, f64[6]>0, 2, 3, f64[]>0)",
    "aten.nll_loss_backward.default(f64[b], f64[b, 6], i64[b]<6, none, 0, 3, f64[]>0)",
    "aten.nll_loss_backward.default(f64[], f64[b, 6], i64[b]<6, none, 1, 3, f64[]>0)",
    "aten.index.Tensor(f64[4, b, 5], [i64[3]<4])",
    "aten.index.Tensor(f64[4, b, 5], [i64[6]<4, none, i64[6]<5])",
    "aten.index.Tensor(f64[b, 4, 5], [none, i64[6, 1]<4, i64[3]<5])",
    "aten.index.Tensor(f64[6, 5, 4], [i64[b, 3]<6])",
    "aten.index_put.default(f64[6, b], [i64[4]~6], f64[4, b])",
    "aten.index_put.default(f64[6, 5], [i64[b]<6], f64[b, 5], true)",
    "aten.index_put.default(f64[6, 5]=0, [i64[b]<6], f64[b, 5], true)",
    "aten.index_put.default(f64[6, 5, 3]=0, [none, i64[b]<5], f64[6, b, 3], true)",
    "aten.index_put.default(f64[6, 5]=0, [i64[4]~6], f64[5])",
    "aten.index_select.default(f64[b, 6, 5], 1, i64[4]<6)",
    "aten.index_select.default(f64[6, 5], 0, i64[b]<6)",
    "aten.gather.default(f64[b, 6], 1, i64[b, 6]<6)",
    "aten.gather.default(f64[b, 6, 5], 2, i64[b, 3, 4]<5)",
    "aten.gather.default(f64[1, 6], 1, i64[1, 6]<6)",
    "aten.scatter.src(f64[b, 6], 1, i64[b, 6]~6, f64[b, 6])",
    "aten.scatter.src(f64[b, 6], 1, i64[b, 3]~6, f64[b, 4])",
    "aten.scatter.value(f64[b, 6], 1, i64[b, 2]<6, 0)",
    "aten.scatter.value(f64[b, 6], -1, i64[b, 2]<6, 1.5)",
    "aten.scatter_add.default(f64[b, 6], 1, i64[b, 5]<6, f64[b, 5])",
    "aten.index_add.default(f64[b, 6, 5], 1, i64[4]<6, f64[b, 4, 5], 2)",
    "aten._unsafe_index.Tensor(f64[b, 6, 5], [none, i64[4, 1]<6, i64[3]<5])",
    "aten._unsafe_index_put.default(f64[6, 5]=0, [i64[b]<6], f64[b, 5], true)",
    "aten.cumprod.default(f64[b, 6, 5], 1)",
    "aten.cummax.default(f64[b, 6], 1)",
    "aten.cummin.default(f64[b, 6, 5], 2)",
    "aten.logcumsumexp.default(f64[b, 6], 1)",
    "aten.median.dim(f64[b, 6, 5], 1)",
    "aten.kthvalue.default(f64[b, 6, 5], 2, -1, true)",
    "aten.argmin.default(f64[b, 6], -1)",
    "aten.scatter_add.default(f64[b, 6]=0, 1, i64[b, 5]<6, f64[b, 5])",
    "aten.topk.default(f64[b, 6], 2)",
    "aten.topk.default(f64[b, 6, 5], 3, 1)",
    "aten.sort.default(f64[b, 6])",
    "aten.sort.default(f64[b, 6, 5], 0, true)",
    "aten.sort.stable(f64[b, 6], true, 1, false)",
    "aten.cumsum.default(f64[b, 6, 5], 1)",
    "aten.cumsum.default(f64[b, 6], 0)",
    "aten.argmax.default(f64[b, 6], -1)",
    "aten.argmax.default(f64[b, 6, 5], 1, true)",
    "aten.argmax.default(f64[6])",
    "aten.max.dim(f64[b, 6, 5], 1)",
    "aten.min.dim(f64[b, 6, 5], -1, true)",
    "aten.histc.default(f64[b, 5], 4, -2, 2)",
    "aten.histc.default(f64[b, 5], 4)",
]

REDUCTION = [
    "aten.sum.dim_IntList(f64[b, (2 3), 5], [1])",
    "aten.sum.dim_IntList(f64[b, 6, 5], [0, -1], true)",
    "aten.sum.dim_IntList(f64[b, 6], none)",
    "aten.sum.dim_IntList(bool[b, 6], [0])",
    "aten.sum.dim_IntList(bf16[b, 6], [0], false, f32)",
    "aten.sum.default(f32[b, 6], f64)",
    "aten.sum.default(f64[b, (2 3)])",
    "aten.mean.dim(f64[b, 6, 5], [-1])",
    "aten.mean.dim(f64[b, (2 3), 5], [0, 1], true)",
    "aten.mean.default(f64[b, (2 3)])",
    "aten.mean.default(f32[b, 6], f64)",
    "aten.mean.dim(bf16[b, 6], [0, 1], false, f32)",
    "aten.amax.default(f64[b, 6, (2 2)], [2], true)",
    "aten.amax.default(f64[b, 6], [0])",
    "aten.max.default(f64[b, 6])",
    "aten.amin.default(f64[b, 6], [1])",
    "aten.min.default(f64[5, 6])",
    "aten.any.default(bool[5, 6])",
    "aten.any.dim(bool[b, 6], 1)",
    "aten.all.default(bool[5, 6])",
    "aten.all.dim(bool[b, 6], 1, true)",
    "aten.prod.dim_int(f64[b, 6], 1)",
    "aten.var.correction(f64[b, 6, 5], [1])",
    "aten.std.correction(f64[b, 6], [-1], 0, true)",
    "aten.logsumexp.default(f64[b, 6], [1])",
    "aten.var_mean.correction(f64[b, 6, 5], [1])",
    "aten.norm.ScalarOpt_dim(f64[b, 6], 2, [1])",
    "aten.linalg_vector_norm.default(f64[b, 6], 2, [1])",
    "aten.linalg_vector_norm.default(f64[5, 6], 2)",
    "aten.mse_loss.default(f64[b, 6], f64[b, 6], 2)",
    "aten.mse_loss.default(f64[b, 6], f64[b, 6], 1)",
    "aten.mse_loss.default(f64[b, 6], f64[6], 0)",
    "aten.mse_loss_backward.default(f64[], f64[b, 6], f64[b, 6], 2)",
    "aten.mse_loss_backward.default(f64[], f64[b, 6], f64[b, 6], 1)",
    "aten.mse_loss_backward.default(f64[b, 6], f64[b, 6], f64[b, 6], 0)",
    "aten.smooth_l1_loss.default(f64[b, 6], f64[b, 6], 2, 0.5)",
    "aten.smooth_l1_loss_backward.default(f64[], f64[b, 6], f64[b, 6], 2, 0.5)",
    "aten.huber_loss.default(f64[b, 6], f64[b, 6], 2, 0.5)",
    "aten.huber_loss_backward.default(f64[], f64[b, 6], f64[b, 6], 2, 0.5)",
    "aten.soft_margin_loss.default(f64[b, 6], f64[b, 6], 2)",
    "aten.soft_margin_loss_backward.default(f64[], f64[b, 6], f64[b, 6], 2)",
    "aten.binary_cross_entropy.default(f64[b, 6]<1, f64[b, 6]<1, f64[b, 6]>0, 2)",
    "aten.binary_cross_entropy_backward.default(f64[], f64[b, 6]<1, f64[b, 6]<1, f64[b, 6], 2)",
    "aten.binary_cross_entropy_backward.default(f64[], f64[b, 6]<1, f64[b, 6]<1, none, 1)",
    "aten.binary_cross_entropy_with_logits.default(f64[b, 6], f64[b, 6], none, none, 2)",
    "aten.binary_cross_entropy_with_logits.default(f64[b, 6], f64[b, 6], f64[6], f64[6]>0, 2)",
    "aten.binary_cross_entropy_with_logits.default(f64[b, 6], f64[b, 6], none, f64[6]>0, 0)",
]

FACTORY = [
    "aten.zeros.default([b, 6])",
    "aten.ones.default([b, 6], f64)",
    "aten.full.default([b, 6], 1.5, f64)",
    "aten.full.default([b, 24], 1.5, f64) -> [b, (2 3 4)]",
    "aten.full.default(sizes[], 1.5, f64)",
    "aten.scalar_tensor.default(2.5)",
    "aten.new_zeros.default(f64[b, 6], [b, 5])",
    "aten.new_ones.default(f64[b, 6], [b, 6])",
    "aten.new_full.default(f64[6], [b, 5], 2.5)",
    "aten.zeros_like.default(f64[b, (2 3)])",
    "aten.ones_like.default(f64[b, 6], bool)",
    "aten.full_like.default(f64[b, 6], 0.5)",
    "aten.fill.Scalar(f64[b, 6], 0.5)",
    "aten.arange.default(b)",
    "aten.arange.default(6, f64)",
    "aten.arange.default(24) -> [(2 3 4)]",
    "aten.arange.start(2, 8)",
    "aten.arange.start_step(0.5, 6.5, 1.5, f64)",
    "aten.arange.start_step(9, -3, -2)",
    "aten.eye.default(5)",
    "aten.eye.m(5, 6)",
    "aten.linspace.default(0.0, 1.0, 6)",
    "aten.tril_indices.default(3, 4)",
    "aten.triu_indices.default(3, 4)",
]

ATTENTION = [
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 6, 5, 4], f64[b, 6, 5, 4], none, true, 0.5)",
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 3, 7, 4], f64[b, 3, 7, 2], none, false, 0.5)",
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 2, 7, 4], f64[b, 2, 7, 4], none, true, 0.5)",
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 2, 7, 4], f64[b, 2, 7, 4], f64[b, 1, 5, 7],"
    " false, 0.5)",
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 6, 7, 4], f64[b, 6, 7, 4], f64[1, 6, 5, 7],"
    " true, 0.5)",
    "medley.attention.default(f64[b, 6, 7, 4], f64[b, 2, 5, 4], f64[b, 2, 5, 4], none, true, 0.5)",
    "medley.attention.default(f64[b, 6, 5, 4], f64[b, 1, 5, 4], f64[b, 1, 5, 4], none, true, 0.5)",
    "medley.attention.default(f64[b, 1, 5, 4], f64[b, 1, 5, 4], f64[b, 1, 5, 3], f64[1, 1, 1, 5],"
    " false, 0.5)",
    "medley.attention_backward.default(f64[b, 6, 7, 4], f64[b, 6, 7, 4], f64[b, 2, 5, 4],"
    " f64[b, 2, 5, 4], none, f64[b, 6, 7, 4], f64[b, 6, 7]>0, true, 0.5)",
    "medley.attention_backward.default(f64[b, 6, 5, 4], f64[b, 6, 5, 4], f64[b, 1, 5, 4],"
    " f64[b, 1, 5, 4], f64[1, 6, 5, 5], f64[b, 6, 5, 4], f64[b, 6, 5]>0, true, 0.5)",
    "medley.attention_backward.default(f64[b, 6, 5, 4], f64[b, 6, 5, 4], f64[b, 6, 5, 4],"
    " f64[b, 6, 5, 4], none, f64[b, 6, 5, 4], f64[b, 6, 5]>0, true, 0.5)",
    "medley.attention_backward.default(f64[b, 6, 5, 2], f64[b, 6, 5, 4], f64[b, 3, 7, 4],"
    " f64[b, 3, 7, 2], none, f64[b, 6, 5, 2], f64[b, 6, 5]>0, false, 0.5)",
    "medley.attention_backward.default(f64[b, 6, 5, 4], f64[b, 6, 5, 4], f64[b, 2, 7, 4],"
    " f64[b, 2, 7, 4], f64[b, 1, 5, 7], f64[b, 6, 5, 4], f64[b, 6, 5]>0, false, 0.5)",
    "medley.dropout.default(f64[b, (2 3), 5], i64[2]<9, 0.3, 7, [b, 6, 5], [0, 0, 0], [b, 6, 5])",
    "medley.dropout.default(f64[(2 3), (3 5)], i64[2]<9, 0.5, 7, [6, 15], [0, 0], [6, 15])",
    "medley.dropout.default(f64[b*6, 5], i64[2]<9, 0.5, 7, [b*6, 5], [0, 0], [b*6, 5])"
    " -> [(b 2 3), 5]",
    "medley.dropout_backward.default(f64[b, (2 3)], i64[2]<9, 0.3, 7, [b, 6], [0, 0], [b, 6])",
    "medley.random.default(i64[2]<9, 'uniform', 7, [b, 6, 5], sizes[], sizes[], sizes[], f64)"
    " -> [b, (2 3), 5]",
    "medley.random.default(i64[2]<9, 'normal', 7, [b*6, 1, 5], sizes[], sizes[], sizes[], f64)"
    " -> [(b 2 3), 1, 5]",
    "medley.random.default(i64[2]<9, 'uniform', 7, sizes[], sizes[], sizes[], sizes[], bf16)",
    "medley.mean_loss.default(f64[], f64[]>0)",
    "medley.mean_loss_backward.default(f64[], f64[]>0)",
    "medley.experts.default(f64[b, 6], i64[b, 2]<5, f64[b, 2], f64[5, 14, 6], f64[5, 3, 7],"
    " 'silu', 0, 5)",
    "medley.experts.default(f64[b, 6], i64[b, 3]<4, f64[b, 3], f64[4, 6, 6], f64[4, 5, 6],"
    " 'gelu', 0, 4)",
    "medley.experts.default(bf16[b, 6], i64[b, 2]<5, f32[b, 2], bf16[5, 14, 6], bf16[5, 3, 7],"
    " 'silu', 0, 5)",
    "medley.experts_backward.default(f64[b, 3], f64[b, 6], i64[b, 2]<5, f64[b, 2], f64[5, 14, 6],"
    " f64[5, 3, 7], 'silu', 0, 5)",
    "medley.experts_backward.default(f64[b, 5], f64[b, 6], i64[b, 3]<4, f64[b, 3], f64[4, 6, 6],"
    " f64[4, 5, 6], 'relu', 0, 4)",
]

CONVOLUTION = [
    "aten.convolution.default(f64[b, 6, 5, 4], f64[4, 6, 3, 2], f64[4], [1, 1], [1, 0], [1, 1],"
    " false, [0, 0], 1)",
    "aten.convolution.default(f64[b, (2 3), 5], f64[(2 2), 6, 3], none, [2], [1], [1], false, [0],"
    " 1)",
    "aten.convolution.default(f64[b, 6, 5], f64[9, 2, 3], f64[9], [1], [0], [1], false, [0], 3)",
    "aten.convolution.default(f64[b, 6, 5], f64[6, 1, 3], none, [1], [1], [1], false, [0], 6)",
    "aten.convolution.default(f64[b, 6, 5], f64[9, 2, 3], none, [1], [0], [1], false, [0], 3)",
    "aten.convolution.default(f64[b, 6, 5], f64[6, 2, 3], f64[2], [2], [1], [1], true, [1], 1)",
    "aten.convolution.default(f64[b, 6, 5], f64[6, 2, 3], none, [2], [1], [1], true, [1], 3)",
    "aten.convolution_backward.default(f64[b, 4, 5, 3], f64[b, 6, 5, 4], f64[4, 6, 3, 2], [4],"
    " [1, 1], [1, 0], [1, 1], false, [0, 0], 1, [true, true, true])",
    "aten.convolution_backward.default(f64[b, 9, 3], f64[b, 6, 5], f64[9, 2, 3], [9],"
    " [1], [0], [1], false, [0], 3, [true, true, true])",
    "aten.convolution_backward.default(f64[b, 9, 3], f64[b, 6, 5], f64[9, 2, 3], [0],"
    " [1], [0], [1], false, [0], 3, [true, true, false])",
    "aten.convolution_backward.default(f64[b, 4, 3], f64[b, 6, 5], f64[4, 6, 3], [4],"
    " [1], [0], [1], false, [0], 1, [false, true, true])",
    "aten.convolution_backward.default(f64[b, 2, 10], f64[b, 6, 5], f64[6, 2, 3], [2],"
    " [2], [1], [1], true, [1], 1, [true, true, true])",
    "aten.convolution_backward.default(f64[b, 6, 10], f64[b, 6, 5], f64[6, 2, 3], [0],"
    " [2], [1], [1], true, [1], 3, [true, true, false])",
    "aten.convolution_backward.default(f64[b, 6, 2], f64[b, 6, 6], f64[6, 1, 3], [6],"
    " [1], [0], [2], false, [0], 6, [true, true, true])",
    "aten.max_pool2d_with_indices.default(f64[b, 6, 4, 6], [2, 2])",
    "aten.max_pool2d_with_indices_backward.default(f64[b, 6, 2, 3], f64[b, 6, 4, 6], [2, 2],"
    " [2, 2], [0, 0], [1, 1], false, i64[b, 6, 2, 3]<24)",
    "aten.avg_pool2d.default(f64[b, 6, 4, 6], [2, 2])",
    "aten.avg_pool2d_backward.default(f64[b, 6, 2, 3], f64[b, 6, 4, 6], [2, 2], [2, 2], [0, 0],"
    " false, true, none)",
    "aten._adaptive_avg_pool2d.default(f64[b, 6, 4, 6], [2, 2])",
    "aten._adaptive_avg_pool2d_backward.default(f64[b, 6, 2, 2], f64[b, 6, 4, 6])",
    "aten.adaptive_max_pool2d.default(f64[b, 6, 4, 6], [2, 2])",
    "aten.adaptive_max_pool2d_backward.default(f64[b, 6, 2, 2], f64[b, 6, 4, 6],"
    " i64[b, 6, 2, 2]<4)",
    "aten.fractional_max_pool2d.default(f64[b, 3, 6, 6], [2, 2], [3, 3], f64[b, 3, 2]<1)",
    "aten.fractional_max_pool2d_backward.default(f64[b, 3, 3, 3], f64[b, 3, 6, 6], [2, 2], [3, 3],"
    " i64[b, 3, 3, 3]<36)",
    "aten.max_pool3d_with_indices.default(f64[b, 3, 2, 4, 6], [2, 2, 2])",
    "aten.max_pool3d_with_indices_backward.default(f64[b, 3, 1, 2, 3], f64[b, 3, 2, 4, 6],"
    " [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], false, i64[b, 3, 1, 2, 3]<48)",
    "aten.avg_pool3d.default(f64[b, 3, 2, 4, 6], [2, 2, 2])",
    "aten.avg_pool3d_backward.default(f64[b, 3, 1, 2, 3], f64[b, 3, 2, 4, 6], [2, 2, 2], [2, 2, 2],"
    " [0, 0, 0], false, true, none)",
    *[
        case
        for kind in ("reflection", "replication")
        for case in (
            f"aten.{kind}_pad1d.default(f64[b, 3, 6], [2, 1])",
            f"aten.{kind}_pad1d_backward.default(f64[b, 3, 9], f64[b, 3, 6], [2, 1])",
            f"aten.{kind}_pad2d.default(f64[b, 3, 5, 6], [2, 1, 0, 3])",
            f"aten.{kind}_pad2d_backward.default(f64[b, 3, 8, 9], f64[b, 3, 5, 6], [2, 1, 0, 3])",
        )
    ],
    "aten.im2col.default(f64[b, 3, 4, 4], [2, 2], [1, 1], [0, 0], [1, 1])",
    "aten.col2im.default(f64[b, 12, 9], [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])",
    "aten.pixel_shuffle.default(f64[b, 5, 4, 3, 3], 2)",
    "aten.pixel_unshuffle.default(f64[b, 2, 4, 6], 2)",
    "aten.channel_shuffle.default(f64[b, 6, 4, 3], 2)",
    "aten.grid_sampler_2d.default(f64[b, 3, 4, 4], f64[b, 5, 2, 2], 0, 0, false)",
    "aten.grid_sampler_2d_backward.default(f64[b, 3, 5, 2], f64[b, 3, 4, 4], f64[b, 5, 2, 2], 0, 0,"
    " false, [true, true])",
]

UPDATE = [
    "medley.adamw.default(f64[5, 6], f64[5, 6], f64[5, 6], f64[5, 6]>0, none, f64[3]>0, 0.9, 0.99,"
    " 1e-08, 0.1)",
    "medley.adamw.default(bf16[5, 6], bf16[5, 6], f32[5, 6], f32[5, 6]>0, f32[5, 6], f64[3]>0,"
    " 0.9, 0.99, 1e-08, 0.1)",
    "medley.adam.default(f64[5, 6], f64[5, 6], f64[5, 6], f64[5, 6]>0, none, f64[3]>0, 0.9, 0.99,"
    " 1e-08, 0.1)",
    "medley.lion.default(f64[5, 6], f64[5, 6], f64[5, 6], none, f64[3]>0, 0.9, 0.99, 0.1)",
    "medley.muon.default(f64[5, 6], f64[5, 6], f64[5, 6], none, f64[3]>0, 0.95, 0.1, 3.4445,"
    " -4.775, 2.0315, 1e-07, 5.0, true, false)",
    "medley.sgd.default(f64[5, 6], f64[5, 6], f64[5, 6], none, f64[3]>0, 0.9, 0.1, true)",
    "medley.sgd.default(f64[5, 6], f64[5, 6], f64[5, 6], none, f64[8]>0, 0.9, 0.1, true)",
    "medley.sgd.default(f64[5, 6], f64[5, 6], none, none, f64[3]>0, 0.0, 0.0, false)",
    "medley.sum_squares.default(f64[5, (2 3)])",
    "medley.add_n.default([f64[5, 6], f64[5, 6], f64[5, 6]])",
    "medley.clip_scale.default(f64[]>0, 1.0)",
    "medley.scale_scalars.default(f64[3], f64[])",
    "medley.accumulate.default(f64[5, 6])",
    "medley.accumulate_mean.default(f64[5, 6], 3)",
    "medley.step_sum.default(f64[5, 6])",
    "medley.step_share.default(f64[5, 6], 2, 3)",
    "medley.average.default(f64[5, 6], f64[5, 6], f64[3]>0, 0.25)",
    "medley.average.default(f64[5, 6], f64[5, 6], f64[5]>0, 0.25)",
    "medley.loss_scale.default(f64[])",
    "medley.scale_loss.default(f64[], f64[4]>0, 8.0)",
    "medley.unscale_squares.default(f64[]>0, f64[4]>0, 8.0)",
    "medley.scaled_step.default(f64[3], f64[]>0, f64[]>0, f64[4]>0, 8.0, true)",
    "medley.next_scale.default(f64[4]>0, f64[]>0, 3)",
]

CASES = [
    *POINTWISE,
    *CONTRACTION,
    *LINALG,
    *LAYOUT,
    *SLICING,
    *NORMALISATION,
    *INDEXING,
    *REDUCTION,
    *FACTORY,
    *ATTENTION,
    *CONVOLUTION,
    *UPDATE,
]

# Ops that a case cannot test: undefined results, and an op without a CPU kernel.
WITHOUT_CASE = {
    "medley.adafactor.default",  # every device that updates computes it whole
    "medley.adamw8.default",  # codes of eight bits
    *(f"medley.pointwise{states}.default" for states in range(5)),  # any function of a user
    *(f"medley.whole{states}.default" for states in range(7)),  # the same, of whole tensors
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten._fused_rms_norm_backward.default",
}
