"""What is refused today, and by which sentence; every other module trains under every plan.

A line that is no longer true makes its test fail: take it out.
"""

from __future__ import annotations

# The sentence of capture, and the modules that it refuses.
CAPTURE: dict[str, list[str]] = {
    "(loss sum, weight) must be two scalars": ["losses/with_logits_in_a_tuple"],
    ".numpy() is not supported": ["structures/numpy"],
    "DataParallel divides the batch already": ["structures/data_parallel"],
    "Dynamo does not know how to trace": ["structures/cond"],
    "a loop over the rows of the batch": ["structures/loop_over_rows"],
    "count with torch.bincount-like": ["structures/unique"],
    "every call changes self.calls": ["state/python_counter"],
    "expected a tensor, a tuple or list of tensors": ["batches/a_number"],
    "expected a torch.nn.Module": ["structures/function_instead_of_a_module"],
    "has no shape yet": ["structures/lazy_layer"],
    "holds tensors inside a dict": ["batches/nested_dict"],
    "holds the size of the batch": [
        "losses/barlow_twins",
        "losses/cosine_embedding",
        "losses/hinge_embedding",
        "losses/margin_ranking",
        "losses/multi_margin",
        "losses/multilabel_soft_margin",
        "losses/poisson_nll",
        "losses/sum_over_the_batch_size",
        "losses/triplet",
        "reductions/variance_over_rows_biased",
        "structures/divided_by_len",
        "structures/divided_by_rows",
    ],
    "hooks of register_post_accumulate_grad_hook are not captured": ["state/gradient_accumulated"],
    "is invalid for input of size": ["structures/fixed_rows_in_a_view"],
    "is sparse: pass it dense": ["batches/sparse"],
    "it is a TorchScript module": ["structures/scripted", "structures/scripted_part"],
    "it is compiled by torch.compile": ["structures/compiled", "structures/compiled_part"],
    "its random numbers depend on how the work is split": [
        "state/alpha_dropout",
        "state/bernoulli",
        "state/gumbel_softmax",
        "state/multinomial",
        "state/rand_like",
        "state/randint",
        "state/randn_of_the_batch",
        "state/randperm",
        "state/rrelu",
    ],
    "keep it a tensor: no .item(), float(), int(), bool(), `if` of it": [
        "losses/gaussian_nll",
        "normalization/batch_norm_cumulative",
        "structures/if_of_values",
        "structures/list_of_a_tensor",
        "structures/number_of_a_tensor",
        "structures/while_of_values",
    ],
    "keys of a dict must be names": ["batches/keys_that_are_no_names"],
    "make the shapes depend on the sizes of the batch only": [
        "losses/ctc",
        "recurrent/lstm_packed",
    ],
    "otherwise than as the attribute of its module": ["state/parameter_in_a_list"],
    "returned no loss that depends on its parameters": [
        "losses/of_no_parameter",
        "structures/all_frozen",
        "structures/no_parameters",
    ],
    "returned no loss: expected a scalar tensor": [
        "losses/an_integer",
        "losses/none",
        "losses/not_a_scalar",
    ],
    "returns nothing: what it does besides is not captured": ["state/gradient_watched"],
    "sparse gradients are not supported": ["layers/embedding_sparse"],
    "sparse tensors are not supported": ["structures/sparse_product"],
    "tensors of type torch.complex128 are not supported": [
        "attention/rotary_complex",
        "batches/complex",
        "linalg/fft",
        "structures/complex_numbers",
    ],
    "tensors of type torch.float8_e4m3fn are not supported": ["structures/float8"],
    "the graph depends on the batch size in a way that no multiple of it expresses": [
        "reductions/all_but_the_first_row",
        "reductions/variance_over_rows",
        "structures/divided_by_rows_less_one",
    ],
    "the model changes a tensor of the batch in place": ["structures/changes_the_batch"],
    "the model changes its parameter": [
        "layers/embedding_with_a_limit",
        "state/teacher_in_parameters",
    ],
    "the model draws from": [
        "state/numpy_random",
        "state/python_random",
        "state/python_random_branch",
    ],
    "torch.where(mask, x, y) or multiplying by the mask keeps the shape": [
        "structures/boolean_index",
        "structures/masked_select",
        "structures/nonzero",
    ],
    "what the call before has left in": ["state/outputs_collected", "state/state_in_an_attribute"],
    "with a leading batch size > 0": ["batches/no_rows"],
}

# Rows meet: the micro-batches of a step would not compute what the whole batch does.
MEET: list[str] = [
    "layers/embedding_by_frequency",
    "linalg/chain_of_matrices",
    "losses/contrastive",
    "losses/contrastive_of_a_batch_margin",
    "losses/log_of_a_mean",
    "losses/mean_over_rows_first",
    "losses/ratio_of_means",
    "losses/root_of_a_mean",
    "losses/standardized_by_the_batch",
    "losses/weighted_by_the_batch",
    "losses/with_a_penalty",
    "normalization/batch_norm1d",
    "normalization/batch_norm1d_of_sequences",
    "normalization/batch_norm2d",
    "normalization/batch_norm3d",
    "normalization/batch_norm_plain",
    "normalization/batch_norm_slow",
    "normalization/batch_norm_twice",
    "normalization/instance_norm_tracked",
    "reductions/cumsum_over_rows",
    "reductions/first_row",
    "reductions/max_over_rows",
    "reductions/mean_over_rows",
    "reductions/norm_over_rows",
    "reductions/reversed_rows",
    "reductions/rolled_rows",
    "reductions/similarity_of_rows",
    "reductions/softmax_over_rows",
    "reductions/sort_over_rows",
    "reductions/sum_over_rows",
    "shapes/cat_of_rows",
    "state/centre_of_a_teacher",
    "state/gradient_clipped",
    "state/gradient_hooks_in_turn",
    "state/gradient_normed",
    "state/gradients_of_all_clipped",
    "state/queue_of_features",
    "state/running_maximum",
    "state/running_mean",
    "state/running_mean_anew",
    "state/used_then_averaged_anew",
]

# Ops without a rule, which take all rows at once: no micro-batches.
NO_RULE: dict[str, list[str]] = {
    "aten._cdist_forward.default": ["reductions/distance"],
    "aten._embedding_bag.default": [
        "layers/embedding_bag_max",
        "layers/embedding_bag_mean",
        "layers/embedding_bag_sum",
    ],
    "aten._euclidean_dist.default": ["state/codebook"],
    "aten._linalg_det.default": ["linalg/determinant"],
    "aten._linalg_eigh.default": ["linalg/eigenvalues"],
    "aten._linalg_slogdet.default": ["linalg/logdet"],
    "aten._linalg_solve_ex.default": ["linalg/solve"],
    "aten._linalg_svd.default": ["linalg/svd_values"],
    "aten._native_batch_norm_legit.no_stats": [
        "normalization/batch_norm_untracked",
        "normalization/instance_norm",
        "normalization/instance_norm_affine",
    ],
    "aten._native_batch_norm_legit_no_training.default": [
        "normalization/batch_norm_frozen",
        "normalization/batch_norm_in_eval",
    ],
    "aten._prelu_kernel.default": ["activations/prelu_each", "activations/prelu_one"],
    "aten._trilinear.default": ["layers/bilinear"],
    "aten._unsafe_index.Tensor": [
        "convolution/bicubic",
        "convolution/bilinear",
        "convolution/linear_resize",
        "convolution/nearest",
        "convolution/trilinear",
    ],
    "aten._weight_norm_interface_backward.default": [
        "normalization/weight_norm_new",
        "normalization/weight_norm_old",
    ],
    "aten.acos.default": ["pointwise/acos"],
    "aten.adaptive_max_pool2d.default": ["convolution/adaptive_max"],
    "aten.asin.default": ["pointwise/asin"],
    "aten.asinh.default": ["pointwise/asinh"],
    "aten.atan.default": ["pointwise/atan"],
    "aten.avg_pool3d.default": ["convolution/avg_pool3d", "normalization/local_response_norm"],
    "aten.binary_cross_entropy.default": ["losses/bce"],
    "aten.celu.default": ["activations/celu"],
    "aten.channel_shuffle.default": ["shapes/channel_shuffle"],
    "aten.cosh.default": ["losses/log_cosh", "pointwise/cosh"],
    "aten.cummax.default": ["reductions/cummax"],
    "aten.cumprod.default": ["reductions/cumprod", "reductions/product"],
    "aten.diag_embed.default": ["shapes/diag_embed"],
    "aten.diagonal.default": [
        "linalg/einsum_trace",
        "linalg/trace_of_a_product",
        "shapes/diagonal",
    ],
    "aten.erfc.default": ["pointwise/erfc"],
    "aten.fmax.default": ["pointwise/fmax"],
    "aten.frac.default": ["pointwise/frac"],
    "aten.glu.default": ["activations/glu"],
    "aten.grid_sampler_2d.default": ["convolution/grid_sample"],
    "aten.hypot.default": ["pointwise/hypot"],
    "aten.im2col.default": ["shapes/fold_of_images", "shapes/unfold_of_images"],
    "aten.index_add.default": ["shapes/index_add", "shapes/index_select"],
    "aten.kthvalue.default": ["reductions/kthvalue"],
    "aten.lerp.Tensor": ["pointwise/lerp_by_tensor", "reductions/quantile"],
    "aten.lgamma.default": ["pointwise/lgamma"],
    "aten.linalg_cholesky_ex.default": ["linalg/cholesky"],
    "aten.linalg_inv_ex.default": ["linalg/inverse"],
    "aten.linalg_matrix_exp.default": ["linalg/matrix_exponential"],
    "aten.linalg_qr.default": ["linalg/qr"],
    "aten.linalg_solve_triangular.default": ["linalg/triangular_solve"],
    "aten.log_sigmoid_forward.default": ["activations/logsigmoid"],
    "aten.logaddexp.default": ["pointwise/logaddexp"],
    "aten.logcumsumexp.default": ["reductions/logcumsumexp"],
    "aten.logit.default": ["pointwise/logit"],
    "aten.max_pool3d_with_indices.default": ["convolution/max_pool3d"],
    "aten.median.dim": ["reductions/median"],
    "aten.nll_loss2d_forward.default": [
        "losses/cross_entropy_of_images",
        "losses/cross_entropy_of_positions",
    ],
    "aten.norm.ScalarOpt_dim": ["layers/pairwise_distance", "structures/siamese"],
    "aten.pixel_shuffle.default": ["shapes/pixel_shuffle"],
    "aten.pixel_unshuffle.default": ["shapes/pixel_unshuffle"],
    "aten.reflection_pad1d.default": ["shapes/pad_reflected"],
    "aten.reflection_pad2d.default": ["convolution/conv2d_reflected"],
    "aten.replication_pad1d.default": ["shapes/pad_replicated"],
    "aten.replication_pad2d.default": ["convolution/conv2d_replicated"],
    "aten.rot90.default": ["shapes/rot90"],
    "aten.sinc.default": ["pointwise/sinc"],
    "aten.sinh.default": ["pointwise/sinh"],
    "aten.soft_margin_loss.default": ["losses/soft_margin"],
    "aten.tan.default": ["pointwise/tan"],
    "aten.threshold.default": ["activations/threshold"],
    "aten.unfold.default": ["shapes/sliding_windows"],
    "aten.unsafe_split.Tensor": [
        "recurrent/decoder_with_attention",
        "recurrent/gru_cell",
        "recurrent/lstm_cell",
    ],
    "aten.var_mean.correction": ["reductions/variance_and_mean"],
    "aten.xlogy.Tensor": ["losses/kl", "losses/kl_mean", "pointwise/xlogy"],
}


def expected(name: str) -> dict[str, str]:
    """Returns the sentence by what says it: "capture", or a plan of module_training.PLANS."""
    for sentence, names in CAPTURE.items():
        if name in names:
            return {"capture": sentence}
    if name in MEET:
        return {"micro": "because rows meet in "}
    for op, names in NO_RULE.items():
        if name in names:
            return {"micro": f"has no rule that fits ({op})"}
    return {}


def listed() -> list[str]:
    """Returns all modules of the lists above."""
    return [name for each in (*CAPTURE.values(), MEET, *NO_RULE.values()) for name in each]
