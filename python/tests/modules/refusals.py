"""The modules refused today with their error messages. Every other module trains under every plan.
An outdated line fails its test: delete it."""

from __future__ import annotations

# The sentence of capture, and the modules that it refuses.
CAPTURE: dict[str, list[str]] = {
    ".numpy() is not supported": ["structures/numpy"],
    "a loop over the rows of the batch": ["structures/loop_over_rows"],
    "complex numbers (torch.complex128) are not supported": [
        "batches/complex",
        "complex/logarithm",
        "complex/of_the_rows",
    ],
    "count with torch.bincount-like": ["structures/unique"],
    "depends on how the matrix is stored": [
        "linalg/determinant_of_a_transposed",
        "linalg/solve_of_a_transposed",
    ],
    "every call changes self.calls": ["state/python_counter"],
    "expected a tensor, a tuple or list of tensors": ["batches/a_number"],
    "expected a torch.nn.Module": ["structures/function_instead_of_a_module"],
    "forward makes 'weight' of a Linear torch.float32": ["structures/parameter_of_another_type"],
    "has no shape yet": ["structures/lazy_layer"],
    "hooks of register_post_accumulate_grad_hook are not captured": ["state/gradient_accumulated"],
    "is invalid for input of size": ["structures/fixed_rows_in_a_view"],
    "is sparse: pass it dense": ["batches/sparse"],
    "it is a TorchScript module": ["structures/scripted", "structures/scripted_part"],
    "a torch.Generator of the model's own": ["random/generator"],
    "its random numbers depend on how the work is split": ["random/poisson"],
    "torch.manual_seed in forward": ["random/seeded_in_forward"],
    "keep it a tensor: no .item(), float(), int(), bool(), `if` of it": [
        "structures/caught_by_the_caller",
        "structures/caught_check",
        "structures/if_of_values",
        "structures/list_of_a_tensor",
        "structures/number_of_a_tensor",
        "structures/while_of_values",
    ],
    "keys of a dict must be names": ["batches/keys_that_are_no_names"],
    "otherwise than as the attribute of its module": ["state/parameter_in_a_list"],
    "expected the positions of what was packed": ["recurrent/lstm_unpacked_to_the_longest"],
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
    "sparse tensors are not supported": ["structures/sparse_product"],
    "tensors of type torch.float8_e4m3fn are not supported": ["structures/float8"],
    "the graph depends on the batch size in a way that no multiple of it expresses": [
        "reductions/all_but_the_first_row",
        "structures/divided_by_rows_less_one",
    ],
    "the model changes its parameter": [
        "layers/embedding_with_a_limit",
    ],
    "the model draws from": [
        "state/numpy_random",
        "state/python_random",
        "state/python_random_branch",
    ],
    "torch.cond: compute both branches": ["structures/cond"],
    "torch.where(mask, x, y) or multiplying by the mask keeps the shape": [
        "structures/boolean_index",
        "structures/masked_select",
        "structures/nonzero",
    ],
    "what the call before has left in": ["state/outputs_collected", "state/state_in_an_attribute"],
    "with a leading batch size > 0": ["batches/no_rows"],
}

# Cross-sample dependence: micro-batches differ from the whole batch.
MEET: list[str] = [
    "layers/embedding_by_frequency",
    "linalg/chain_of_matrices",
    "losses/barlow_twins",
    "losses/contrastive",
    "losses/contrastive_of_a_batch_margin",
    "losses/log_of_a_mean",
    "losses/root_of_a_mean",
    "losses/similar_to_the_other_half",
    "losses/standardized_by_the_batch",
    "normalization/batch_norm1d",
    "normalization/batch_norm1d_of_sequences",
    "normalization/batch_norm2d",
    "normalization/batch_norm3d",
    "normalization/batch_norm_cumulative",
    "normalization/batch_norm_plain",
    "normalization/batch_norm_slow",
    "normalization/batch_norm_twice",
    "normalization/batch_norm_untracked",
    "normalization/instance_norm_tracked",
    "random/mixed_rows",
    "reductions/cumsum_over_rows",
    "reductions/deviation_of_all",
    "reductions/deviation_over_rows",
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
    "reductions/variance_over_rows",
    "reductions/variance_over_rows_biased",
    "reductions/variance_over_rows_kept",
    "shapes/cat_of_rows",
    "state/centre_of_a_teacher",
    "state/codebook",
    "state/gradient_clipped",
    "state/gradient_normed",
    "state/gradients_of_all_clipped",
    "state/queue_of_features",
    "state/running_maximum",
]

# Ops without a rule, which need all rows: no micro-batches.
NO_RULE: dict[str, list[str]] = {
    "aten._linalg_det.default": ["linalg/determinant", "linalg/determinant_of_a_copy"],
    "aten._linalg_slogdet.default": ["linalg/logdet"],
}


def expected(name: str) -> dict[str, str]:
    """Returns the error message by its source: "capture", or a plan of module_training.PLANS."""
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
