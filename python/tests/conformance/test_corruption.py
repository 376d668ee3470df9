"""Wrong rules are caught: the test of the tests of test_rules.py."""

from __future__ import annotations

import pytest
from cases import CASES
from corruption import corruptions
from op_case import OpCase
from sharded_op import ShardedOp

from medley import _core

# Corruptions that are correct for some arguments, by op.
RIGHT_TOO = {
    "aten.nan_to_num.default": {"linear 0"},  # for finite numbers
    "aten.any.default": {"without the lock of d0", "without the lock of d1"},  # a sum of truths
    "aten.any.dim": {"without the lock of d1"},
    # Every device would do the work of all, or most of it.
    "medley.attention_backward.default": {"without the lock of e", "without the lock of t"},
    "medley.experts.default": {"without the lock of k"},
    "medley.experts_backward.default": {"without the lock of k", "without the lock of o"},
    # The other operand is overwritten, zero or not read.
    "aten.baddbmm.default": {"without the lock of k", "linear 1", "linear 2"},
    "aten.slice_scatter.default": {"linear 1"},
    "aten.cat.default": {"linear 1", "without the lock of d2"},
    "aten.index_put.default": {"without the lock of d0", "linear 2", "linear 3"},
    "aten._unsafe_index_put.default": {"without the lock of d0", "linear 2"},
    "aten.scatter.src": {"linear 2"},
    "aten.scatter_add.default": {"linear 2"},
    "aten.new_zeros.default": {"without the lock of d2", "without the lock of d3"},
    **{
        f"aten.{op}_backward.default": {"linear 0+1"}
        for op in (
            "avg_pool2d",
            "avg_pool3d",
            "_adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "max_pool3d_with_indices",
            "reflection_pad1d",
            "reflection_pad2d",
            "replication_pad1d",
            "replication_pad2d",
        )
    },
    "medley.scale_scalars.default": {"linear 0"},  # for scalars that every device has whole
    # Linear, but its input is already the sum over all devices.
    "medley.unscale_squares.default": {"linear 0"},
    # Its kernel copies one micro-batch. Planning puts a prologue in its place, which adds up whole
    # values.
    "medley.step_sum.default": {"linear 0"},
    # Linear in the weights, which no device has as a partial sum.
    "aten.binary_cross_entropy_with_logits.default": {"linear 2"},
    "aten.binary_cross_entropy.default": {"linear 2"},
    "aten.binary_cross_entropy_backward.default": {"linear 3"},
    "aten.nll_loss_backward.default": {"linear 3", "without the lock of n"},
    # Without a reduction the total weight is zero. The loss is linear like that of a sum.
    "aten.nll_loss_forward.default": {
        "linear 0",
        "linear 2",
        "n SUM in result 1",
        "v SUM in result 1",
    },
    # In training the gradient is the result's gradient times the slopes.
    "aten.rrelu_with_noise_backward.default": {"linear 2"},
    # Statistics that an evaluating batch norm does not save have no elements.
    "aten._native_batch_norm_legit_functional.default": {
        f"{label} {absent} in result {j}"
        for j in (1, 2)
        for label in "nc"
        for absent in ("MAX", "UNAFFECTED")
    },
    "aten._native_batch_norm_legit_no_training.default": {
        f"{label} SUM in result {j}" for j in (1, 2) for label in "nc"
    },
}


def is_caught(case: OpCase, instance: _core.Instance) -> bool:
    try:
        return bool(ShardedOp(case, instance).disagreements())
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return True


# Half of them on every run, all of them nightly.
TEXTS = [
    pytest.param(text, marks=[pytest.mark.slow] if number % 2 else [])
    for number, text in enumerate(CASES)
]


@pytest.mark.parametrize("text", TEXTS)
def test_wrong_rules_are_caught(text: str) -> None:
    case = OpCase(text)
    instance = _core.instantiate(case.graph)
    right = {what for what, wrong in corruptions(case, instance) if not is_caught(case, wrong)}
    assert right <= RIGHT_TOO.get(case.op, set()), str(instance)
